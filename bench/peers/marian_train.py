"""A training step of transformers' Marian, in a minimal loop."""

from __future__ import annotations

import torch
from torch.nn import functional

from bench.peers.marian import build_marian
from bench.peers.rectangles import pad_batch
from bench.pieces import PADDING, Batch
from bench.recipe import BETAS, EPSILON, LEARNING_RATE, SMOOTHING
from bench.task import read_task, train


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    torch.set_float32_matmul_precision("medium" if task.precision == "medium" else "highest")
    model = build_marian(task.size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)

    def step(batch: Batch) -> float:
        padded = pad_batch(batch)
        # Its own loss has no label smoothing, hence ours on its scores.
        scores = model(
            input_ids=padded.source,
            attention_mask=padded.source.ne(PADDING).long(),
            decoder_input_ids=padded.target_in,
            use_cache=False,
        ).logits
        loss = functional.cross_entropy(
            scores.flatten(0, 1), padded.target_out.flatten(), ignore_index=PADDING, label_smoothing=SMOOTHING
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    train(task, step, parameters=sum(weight.numel() for weight in model.parameters()))


if __name__ == "__main__":
    main()
