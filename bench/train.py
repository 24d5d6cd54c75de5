"""How fast is the whole training command, validation and checkpoints included, beside its step and the peers?

    python -m bench.train --help

A window of ours holds one validation and one checkpoint. The last line says what they cost.
"""

from __future__ import annotations

import sys

from bench.competition import Span, command, hold, read_request
from bench.pieces import training_file
from bench.train_step import PLAIN_PEERS, show

OURS = "ours, the command, medium"
STEP = "ours, the step, medium"
COMPETITORS = {
    OURS: command("bench.ours_command", "medium"),
    STEP: command("bench.ours_train", "medium"),
    PLAIN_PEERS[0]: command("bench.peers.torch_transformer_train", "float32"),
    PLAIN_PEERS[1]: command("bench.peers.marian_train", "float32"),
}
# As far apart as validations and checkpoints are in a run whose length nobody chose.
SPANS = {"tiny": Span(warm=5, steps=240, every=120), "base": Span(warm=2, steps=40, every=40)}
PEERS_SPANS = {"tiny": Span(warm=3, steps=24, every=3), "base": Span(warm=1, steps=6, every=1)}


def main() -> int:
    """Run the competition of every size; 1 if anybody fell."""
    request = read_request(__doc__)
    batches = training_file(request.data, request.work)
    fallen = False
    for size in request.sizes:
        entry = {"benchmark": "train", "size": size, "batches": batches}
        whole = hold(request, {OURS: COMPETITORS[OURS]}, entry=f"{size}, the command", span=SPANS[size], **entry)
        others = {name: words for name, words in COMPETITORS.items() if name != OURS}
        steps = hold(request, others, entry=f"{size}, the steps", span=PEERS_SPANS[size], **entry)
        steps.rows.update(whole.rows)
        steps.fallen.update(whole.fallen)
        print(f"\nTraining end to end, {size}\n{show(steps)}", flush=True)
        if OURS in steps.rows and STEP in steps.rows:
            share = steps.rows[OURS].speed.rate / steps.rows[STEP].speed.rate
            print(f"the command runs at {share:.1%} of its step's speed", flush=True)
        fallen = fallen or bool(steps.fallen)
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
