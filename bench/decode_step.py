"""How fast is greedy decoding beside the peer, and how near is it to the matrix products alone?

    python -m bench.decode_step --help

Every output has the same forced length; speed is in target tokens per second, the encoder's time included.
The ratio is to the peer in plain float32. The ceiling is what the step's matrix products alone would allow in
the same arithmetic, measured in the same rounds (bench/floor.py).
"""

from __future__ import annotations

import sys

from bench.competition import Outcome, Span, command, hold, lay_out, read_request
from bench.pieces import decoding_file

COMPETITORS = {
    "ours, float32": command("bench.ours_decode", "float32"),
    "ours, medium": command("bench.ours_decode", "medium"),
    "Marian, float32": command("bench.peers.marian_decode", "float32"),
    "Marian, medium": command("bench.peers.marian_decode", "medium"),
    "products alone, float32": command("bench.floor", "float32"),
    "products alone, medium": command("bench.floor", "medium"),
}
PEER = "Marian, float32"
SPANS = {
    ("tiny", 64): Span(warm=4, steps=60, every=10),
    ("tiny", 1): Span(warm=10, steps=300, every=50),
    ("base", 64): Span(warm=1, steps=12, every=2),
    ("base", 1): Span(warm=4, steps=48, every=6),
}


def show(outcome: Outcome, batch: int) -> str:
    """The table of one size and batch."""
    peer = outcome.rows.get(PEER)
    heads = (
        "",
        "target tokens/s",
        "ratio",
        "ms a step",
        "products, ms",
        "of ceiling",
        "quiet",
        "other CPU",
        "peak MB",
    )
    lines = []
    for name, row in outcome.rows.items():
        floor = outcome.rows.get(f"products alone, {name.split(', ')[1]}")
        lines.append(
            (
                name,
                f"{row.speed.rate:,.0f}",
                f"{row.speed.rate / peer.speed.rate:.2f}" if peer else "-",
                f"{1000 * batch / row.speed.rate:.2f}",
                f"{1000 * batch / floor.speed.rate:.2f}" if floor else "-",
                f"{row.speed.rate / floor.speed.rate:.0%}" if floor else "-",
                f"{row.speed.quiet} of {row.speed.windows}",
                f"{row.speed.other_cpu:.1%}",
                f"{row.peak_mb:,.0f}",
            )
        )
    return "\n".join([lay_out(heads, lines), *(f"{name}: {last}" for name, last in outcome.fallen.items())])


def main() -> int:
    """Run the competition of every size and batch; 1 if anybody fell."""
    request = read_request(__doc__)
    fallen = False
    for (size, batch), span in SPANS.items():
        if size not in request.sizes:
            continue
        outcome = hold(
            request,
            COMPETITORS,
            benchmark="decode_step",
            entry=f"{size}, batch {batch}",
            size=size,
            span=span,
            batches=decoding_file(request.data, request.work, batch),
        )
        print(f"\nDecoding, {size}, batch {batch}\n{show(outcome, batch)}", flush=True)
        fallen = fallen or bool(outcome.fallen)
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
