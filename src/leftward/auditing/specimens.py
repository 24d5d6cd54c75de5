"""Rows of random tokens for the laws to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leftward.packed import Packed, pack
from leftward.settings import Model


@dataclass(frozen=True, eq=False)
class Sample:
    """Target rows of uneven lengths, and their sources where the model reads any."""

    rows: list[np.ndarray]
    sources: list[np.ndarray] | None
    device: str = "cpu"

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return max(map(len, self.rows))

    def target(self) -> Packed:
        """The rows, packed."""
        return pack(self.rows).to(self.device)

    def source(self) -> Packed | None:
        """The sources, packed."""
        return None if self.sources is None else pack(self.sources).to(self.device)

    def only(self, numbers: list[int]) -> Sample:
        """Some of the rows, in this order."""
        sources = None if self.sources is None else [self.sources[number] for number in numbers]
        return Sample([self.rows[number] for number in numbers], sources, self.device)


def draw_sample(settings: Model, seed: int = 0, *, rows: int = 4, longest: int = 12, device: str = "cpu") -> Sample:
    """Random rows for a model of these settings; one row has the full length, one a single token.

    >>> from leftward.settings import Stack
    >>> sample = draw_sample(Model(vocabulary=9, width=8, decoder=Stack(heads=2)), rows=3, longest=5)
    >>> sorted(map(len, sample.rows))[0], sample.longest
    (1, 5)
    """
    random = np.random.default_rng(seed)
    lengths = [longest, 1, *random.integers(2, longest + 1, size=rows - 2)]
    source_lengths = random.integers(1, longest + 4, size=rows)

    def some(vocabulary: int, count: int) -> np.ndarray:
        return random.integers(0, vocabulary, size=count)

    sources = None
    if settings.has_encoder:
        sources = [some(settings.source_size, int(count)) for count in source_lengths]
    return Sample([some(settings.vocabulary, int(count)) for count in lengths], sources, device)
