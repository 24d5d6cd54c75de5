"""How fast is a training step, and how much memory does it take, beside the peers?

    python -m bench.train_step --help

Speed is in real target tokens per second (ends counted, padding not); the ratio is to the best peer in plain
float32. "Model MB" is the peak without what the process held before it built a model.
"""

from __future__ import annotations

import sys

from bench.competition import Outcome, Span, command, hold, lay_out, read_request
from bench.pieces import training_file

COMPETITORS = {
    "ours, float32": command("bench.ours_train", "float32"),
    "ours, medium": command("bench.ours_train", "medium"),
    "ours, bfloat16": command("bench.ours_train", "bfloat16"),
    "torch.nn.Transformer, float32": command("bench.peers.torch_transformer_train", "float32"),
    "torch.nn.Transformer, medium": command("bench.peers.torch_transformer_train", "medium"),
    "Marian, float32": command("bench.peers.marian_train", "float32"),
    "Marian, medium": command("bench.peers.marian_train", "medium"),
}
PLAIN_PEERS = ("torch.nn.Transformer, float32", "Marian, float32")


SPANS = {"tiny": Span(warm=3, steps=24, every=3), "base": Span(warm=1, steps=6, every=1)}


def show(outcome: Outcome) -> str:
    """The table of one size."""
    best = outcome.best(PLAIN_PEERS)
    heads = (
        "",
        "target tokens/s",
        "ratio",
        "slowest",
        "fastest",
        "quiet",
        "other CPU",
        "peak MB",
        "model MB",
        "loss",
    )
    lines = [
        (
            name,
            f"{row.speed.rate:,.0f}",
            f"{row.speed.rate / best.speed.rate:.2f}" if best else "-",
            f"{row.speed.slowest:,.0f}",
            f"{row.speed.fastest:,.0f}",
            f"{row.speed.quiet} of {row.speed.windows}",
            f"{row.speed.other_cpu:.1%}",
            f"{row.peak_mb:,.0f}",
            f"{row.model_mb:,.0f}",
            "-" if row.loss is None else f"{row.loss:.4f}",
        )
        for name, row in outcome.rows.items()
    ]
    return "\n".join([lay_out(heads, lines), *(f"{name}: {last}" for name, last in outcome.fallen.items())])


def main() -> int:
    """Run the competition of every size; 1 if anybody fell."""
    request = read_request(__doc__)
    batches = training_file(request.data, request.work)
    fallen = False
    for size in request.sizes:
        outcome = hold(
            request,
            COMPETITORS,
            benchmark="train_step",
            entry=size,
            size=size,
            span=SPANS[size],
            batches=batches,
        )
        print(f"\nTraining, {size}\n{show(outcome)}", flush=True)
        fallen = fallen or bool(outcome.fallen)
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
