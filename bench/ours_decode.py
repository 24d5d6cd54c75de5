"""Leftward's bare decoding step: greedy, a cache, no options."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from bench.ours_train import build
from bench.pieces import END, START, Batch
from bench.recipe import LENGTH
from bench.task import decode, read_task
from leftward.decoding.greedy import write
from leftward.model.precision import computing_in
from leftward.packed import pack


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    model = build(task.size).eval()

    def step(batch: Batch) -> Tensor:
        with computing_in(task.precision):
            return write(model, START, LENGTH, source=pack([np.append(row, END) for row in batch.sources]))

    decode(task, step, parameters=sum(weight.numel() for weight in model.parameters()))


if __name__ == "__main__":
    main()
