"""How fast is decoding as a user has it, greedy and with a beam of 5, beside the peers?

    python -m bench.decode --help

Every output has the same forced length; speed is in target tokens per second, the encoder's time included. The ratio is
to transformers' `generate` in plain float32. "The bare step" is the core without engine and options.
"""

from __future__ import annotations

import sys

from bench.competition import Outcome, Span, command, hold, lay_out, read_request
from bench.pieces import decoding_file

PEER = "generate, float32"
SPANS = {
    ("tiny", 64): Span(warm=2, steps=20, every=4),
    ("tiny", 1): Span(warm=6, steps=150, every=25),
    ("base", 64): Span(warm=1, steps=6, every=1),
    ("base", 1): Span(warm=2, steps=24, every=4),
}


def competitors(beam: int) -> dict[str, list[str]]:
    """Who takes part."""
    words = ["--beam", str(beam)]
    them = {
        "ours, float32": [*command("bench.ours_engine", "float32"), *words],
        "ours, medium": [*command("bench.ours_engine", "medium"), *words],
        PEER: [*command("bench.peers.marian_decode", "float32"), *words],
        "CTranslate2, float32": [*command("bench.peers.ctranslate2_decode", "float32"), *words],
    }
    if beam == 1:
        them["the bare step, float32"] = command("bench.ours_decode", "float32")
        them["the bare step, medium"] = command("bench.ours_decode", "medium")
    return them


def show(outcome: Outcome, batch: int) -> str:
    """The table of one size, batch and beam."""
    peer = outcome.rows.get(PEER)
    heads = ("", "target tokens/s", "ratio", "ms a step", "quiet", "other CPU", "peak MB")
    lines = [
        (
            name,
            f"{row.speed.rate:,.0f}",
            f"{row.speed.rate / peer.speed.rate:.2f}" if peer else "-",
            f"{1000 * batch / row.speed.rate:.2f}",
            f"{row.speed.quiet} of {row.speed.windows}",
            f"{row.speed.other_cpu:.1%}",
            f"{row.peak_mb:,.0f}",
        )
        for name, row in outcome.rows.items()
    ]
    return "\n".join([lay_out(heads, lines), *(f"{name}: {last}" for name, last in outcome.fallen.items())])


def main() -> int:
    """Run every competition; 1 if anybody fell."""
    request = read_request(__doc__)
    fallen = False
    for size in request.sizes:
        for batch in (64, 1):
            for beam in (1, 5):
                how = "greedy" if beam == 1 else f"beam {beam}"
                outcome = hold(
                    request,
                    competitors(beam),
                    benchmark="decode",
                    entry=f"{size}, batch {batch}, {how}",
                    size=size,
                    span=SPANS[size, batch],
                    batches=decoding_file(request.data, request.work, batch),
                )
                print(f"\nDecoding, {size}, batch {batch}, {how}\n{show(outcome, batch)}", flush=True)
                fallen = fallen or bool(outcome.fallen)
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
