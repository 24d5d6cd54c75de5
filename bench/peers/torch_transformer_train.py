"""A training step of `torch.nn.Transformer`, in the plain loop that its documentation leads to."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.peers.rectangles import pad_batch
from bench.pieces import PADDING, VOCABULARY, Batch
from bench.recipe import BETAS, EPSILON, LEARNING_RATE, SMOOTHING, Size
from bench.task import read_task, train

LONGEST = 512


class Translator(nn.Module):
    """Embedding, sinusoidal positions, nn.Transformer, and the embedding again as the projection."""

    positions: Tensor

    def __init__(self, size: Size) -> None:
        """Random weights; the embedding, scaled, has the customary deviation of 1."""
        super().__init__()
        width = size.width
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.transformer = nn.Transformer(
            width, size.heads, size.layers, size.layers, size.feed_forward, size.dropout, batch_first=True
        )
        self.dropout = nn.Dropout(size.dropout)
        frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
        angles = torch.arange(LONGEST)[:, None] * frequencies
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of every next token."""
        unread = source.eq(PADDING)
        # No padding mask on the target: its padding stands on the right, where no real token looks.
        states = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=self.transformer.generate_square_subsequent_mask(target.shape[1]),
            tgt_is_causal=True,
            src_key_padding_mask=unread,
            memory_key_padding_mask=unread,
        )
        return functional.linear(states, self.embedding.weight)

    def embed(self, ids: Tensor) -> Tensor:
        """Scaled embeddings with their positions."""
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    torch.set_float32_matmul_precision("medium" if task.precision == "medium" else "highest")
    model = Translator(task.size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)

    def step(batch: Batch) -> float:
        padded = pad_batch(batch)
        scores = model(padded.source, padded.target_in)
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
