"""What every competitor does alike: sizes, loss, optimizer, threads, and the length of an output."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 2
SEED = 1
SMOOTHING = 0.1
LEARNING_RATE = 3e-4  # constant, and small enough that a post-norm model learns without a warm-up
BETAS = (0.9, 0.98)
EPSILON = 1e-9
LENGTH = 30  # tokens of every output in the decoding benchmark, the end token forbidden before


@dataclass(frozen=True)
class Size:
    """An encoder-decoder: both sides alike, post-norm, sinusoidal positions, all embeddings tied."""

    layers: int
    width: int
    feed_forward: int
    heads: int
    dropout: float


SIZES = {
    "tiny": Size(layers=4, width=128, feed_forward=256, heads=4, dropout=0.3),
    "base": Size(layers=6, width=512, feed_forward=2048, heads=8, dropout=0.1),
}
