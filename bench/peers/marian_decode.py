"""Greedy decoding or beam search by transformers, Marian with random weights, every output of one length."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.peers.marian import build_marian
from bench.peers.rectangles import pad_rows
from bench.pieces import END, PADDING, Batch
from bench.recipe import LENGTH
from bench.task import decode, read_task


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    torch.set_float32_matmul_precision("medium" if task.precision == "medium" else "highest")
    model = build_marian(task.size).eval()

    def step(batch: Batch) -> Tensor:
        source = pad_rows(batch.sources, after=(END,))
        with torch.inference_mode():
            written = model.generate(
                input_ids=source,
                attention_mask=source.ne(PADDING).long(),
                num_beams=task.beam,
                do_sample=False,
                min_new_tokens=LENGTH,
                max_new_tokens=LENGTH,
            )
        return written[:, 1:]  # the start token was not written by the model

    decode(task, step, parameters=sum(weight.numel() for weight in model.parameters()))


if __name__ == "__main__":
    main()
