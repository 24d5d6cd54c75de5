"""How many predictions the loss should score at a time: the time of output projection and loss by `CHUNK`.

    nice python -m bench.loss_chunks

Forward and backward of 4,096 predictions over 10,000 words, in milliseconds, the least of a few. The memory is
that of one chunk's scores in float32: what a whole batch would need is in the last line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from bench.attention_paths import PRECISIONS, least_seconds
from bench.competition import lay_out
from bench.pieces import VOCABULARY
from bench.recipe import SEED, SIZES, SMOOTHING, THREADS
from leftward.model.precision import computing_in
from leftward.model.transformer import Output
from leftward.settings import Model, Precision, Stack
from leftward.training import objective
from leftward.training.objective import project_and_score

PREDICTIONS = 4_096
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)


def make_work(width: int, precision: Precision, chunk: int) -> Callable[[], object]:
    """Loss and gradients of random states, in chunks of this size."""
    output = Output(Model(vocabulary=VOCABULARY, width=width, decoder=Stack(heads=1), tie="none"), None)
    states = torch.randn(PREDICTIONS, width, requires_grad=True)
    labels = torch.randint(VOCABULARY, (PREDICTIONS,))

    def work() -> object:
        objective.CHUNK = chunk
        with computing_in(precision):
            total, _ = project_and_score(states, labels, output, smoothing=SMOOTHING)
            return torch.autograd.grad(total, (states, output.weight))

    return work


def main() -> None:
    """Measure all of it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patience", type=float, default=6.0, help="seconds for each column of the table")
    patience = parser.parse_args().patience
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    own = objective.CHUNK
    columns = {}
    for name, size in SIZES.items():
        for precision in PRECISIONS:
            works = {str(chunk): make_work(size.width, precision, chunk) for chunk in CHUNKS}
            columns[f"{name}, {precision}"] = least_seconds(works, patience=patience)
    lines = [
        (
            f"{chunk:,}{' (ours)' if chunk == own else ''}",
            *(f"{1_000 * column[str(chunk)]:.0f}" for column in columns.values()),
            f"{chunk * VOCABULARY * 4 / 2**20:.0f}",
        )
        for chunk in CHUNKS
    ]
    print(lay_out(("chunk", *columns, "MB"), lines))


if __name__ == "__main__":
    main()
