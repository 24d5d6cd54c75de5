"""Leftward's training step: packed rows, cheap dropout, projection and loss in one."""

from __future__ import annotations

import numpy as np
import torch

from bench.pieces import END, START, VOCABULARY, Batch
from bench.recipe import BETAS, EPSILON, LEARNING_RATE, SMOOTHING, Size
from bench.task import read_task, train
from leftward.model.precision import computing_in
from leftward.model.transformer import Transformer
from leftward.settings import Model, Stack
from leftward.training.objective import loss_of, shift


def build(size: Size) -> Transformer:
    """A model of this size with random weights."""
    stack = Stack(layers=size.layers, heads=size.heads, feed_forward=size.feed_forward)
    return Transformer(
        Model(vocabulary=VOCABULARY, width=size.width, encoder=stack, decoder=stack, dropout=size.dropout)
    )


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium", "bfloat16"))
    model = build(task.size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)

    def step(batch: Batch) -> float:
        lesson = shift(
            [np.concatenate([[START], row, [END]]) for row in batch.targets],
            [np.append(row, END) for row in batch.sources],
        )
        with computing_in(task.precision):
            loss = loss_of(model, lesson, smoothing=SMOOTHING)
            mean = loss.total / loss.count
            mean.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.item()

    train(task, step, parameters=sum(weight.numel() for weight in model.parameters()))


if __name__ == "__main__":
    main()
