"""Leftward's decoding as a user has it: the engine, a strategy, scores of texts left out."""

from __future__ import annotations

import numpy as np
from torch import Tensor, tensor

from bench.ours_train import build
from bench.pieces import END, START, Batch
from bench.recipe import LENGTH
from bench.task import decode, read_task
from leftward.decoding.engine import Engine
from leftward.decoding.rows import Request
from leftward.decoding.scorer import Scorer
from leftward.model.precision import computing_in
from leftward.settings import Beam, Greedy


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    model = build(task.size).eval()
    strategy = Greedy() if task.beam == 1 else Beam(size=task.beam)

    def step(batch: Batch) -> Tensor:
        requests = [
            Request(row, [START], LENGTH, np.append(source, END).tolist()) for row, source in enumerate(batch.sources)
        ]
        # No end token: every output is as long as it may be.
        engine = Engine(Scorer([model]), strategy, end=None, groups=len(requests), totals=False)
        with computing_in(task.precision):
            written = {each.request.row: each.outputs[0].tokens for each in engine.write(requests)}
        return tensor([written[row] for row in range(len(requests))])

    decode(task, step, parameters=sum(weight.numel() for weight in model.parameters()))


if __name__ == "__main__":
    main()
