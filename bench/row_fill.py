"""How much of what attention computes on a CPU is real: the share of real cells in the rectangles of an epoch.

    python -m bench.row_fill            # a few seconds
    python -m bench.row_fill --save     # and written to bench/results/row_fill.json

A cell is one query against one key. Real are those of a row's own tokens against what the row looks at, a cell
to the right of a query included: a rectangle computes it on either path. The others only fill up. The constant
`CELLS_PER_RECTANGLE` says how many cells a further rectangle must save; the goal is 85% at every site.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.competition import RESULTS, lay_out
from bench.machine import describe_machine
from bench.pieces import BUDGET, DATA, END, START, WINDOW, WORK, Corpus, training_file
from leftward.model import rectangles
from leftward.model.rectangles import Meeting
from leftward.packed import Packed
from leftward.training.objective import shift

CONSTANTS = (500, 1_000, 2_000, 4_000)
GOAL = 0.85


@dataclass(frozen=True)
class Fill:
    """What one constant gives at one site, over an epoch."""

    cells_per_rectangle: int
    site: str
    real: float  # share of all cells
    rectangles: float  # for each batch, on average
    most: int  # in any batch


def read_batches(corpus: Corpus) -> list[tuple[Packed, Packed]]:
    """Every batch as a training step packs it: source and target."""
    packed = []
    for number in range(len(corpus.batches)):
        batch = corpus.batch(number)
        lesson = shift(
            [np.concatenate([[START], row, [END]]) for row in batch.targets],
            [np.append(row, END) for row in batch.sources],
        )
        packed.append((lesson.source, lesson.inputs))
    return packed


def measure(batches: Sequence[tuple[Packed, Packed]], constant: int) -> Iterator[Fill]:
    """The rectangles that this constant makes of the batches, site by site."""
    rectangles.CELLS_PER_RECTANGLE = constant
    sites = {
        "source self": [(source, source) for source, _ in batches],
        "target self": [(target, target) for _, target in batches],
        "cross": [(target, source) for source, target in batches],
    }
    for site, pairs in sites.items():
        real = sum(int(queries.segments.lengths @ keys.segments.lengths) for queries, keys in pairs)
        shapes = [Meeting(queries, keys).shapes for queries, keys in pairs]
        cells = sum(b * q * k for shape in shapes for b, q, k in shape)
        counts = [len(shape) for shape in shapes]
        yield Fill(constant, site, round(real / cells, 4), round(sum(counts) / len(counts), 2), max(counts))


def main() -> None:
    """Measure all constants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with Multi30k")
    parser.add_argument("--work", type=Path, default=WORK, help="a folder for ids, never committed")
    parser.add_argument("--save", action="store_true", help="write bench/results/row_fill.json")
    given = parser.parse_args()
    own = rectangles.CELLS_PER_RECTANGLE
    batches = read_batches(Corpus.load(training_file(given.data, given.work)))
    fills = [fill for constant in CONSTANTS for fill in measure(batches, constant)]
    print(f"{len(batches)} batches of at most {BUDGET} cells a side, out of windows of {WINDOW} rows")
    heads = ("cells per rectangle", "site", "real", f"{GOAL:.0%}?", "rectangles a batch", "most")
    lines = [
        (
            f"{fill.cells_per_rectangle:,}{' (ours)' if fill.cells_per_rectangle == own else ''}",
            fill.site,
            f"{fill.real:.1%}",
            "yes" if fill.real >= GOAL else "no",
            f"{fill.rectangles:.1f}",
            str(fill.most),
        )
        for fill in fills
    ]
    print(lay_out(heads, lines))
    if given.save:
        facts = {
            "machine": describe_machine(),
            "window": WINDOW,
            "budget": BUDGET,
            "batches": len(batches),
            "ours": own,
        }
        rows = ",\n  ".join(json.dumps(dataclasses.asdict(fill)) for fill in fills)
        path = RESULTS / "row_fill.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{\n "facts": {json.dumps(facts)},\n "fills": [\n  {rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
