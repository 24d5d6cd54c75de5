"""Where a token stands, told to the model: added to embeddings, turned into queries and keys, or added to scores.

N tokens, H heads, D wide; b rows of Q queries and K keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leftward.packed import Places
from leftward.settings import Model, Stack


def sinusoids(count: int, width: int) -> Tensor:
    """(count, width) sines in the first half and cosines in the second, of wavelengths from 2 pi to 20,000 pi.

    >>> sinusoids(2, 4)[0].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    half = (width + 1) // 2
    rate = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000.0) / half))
    angle = torch.arange(count, dtype=torch.float64)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]


class Sinusoidal(nn.Module):
    """Fixed waves, added to the embeddings."""

    table: Tensor

    def __init__(self, settings: Model) -> None:
        super().__init__()
        table = sinusoids(settings.context + settings.position_offset, settings.width)
        self.register_buffer("table", table.to(torch.get_default_dtype()), persistent=False)

    def forward(self, at: Tensor) -> Tensor:
        """(N, width) for tokens at these positions."""
        return self.table.index_select(0, at)


class Learned(nn.Embedding):
    """One learned vector for each position, added to the embeddings."""

    def __init__(self, settings: Model) -> None:
        super().__init__(settings.context + settings.position_offset, settings.width)
        nn.init.normal_(self.weight, std=0.02)


class Rotary(nn.Module):
    """Queries and keys turned by an angle that grows with their position, pair by pair of their numbers."""

    def __init__(self, settings: Model, stack: Stack) -> None:
        super().__init__()
        size = settings.head_size(stack)
        exponent = torch.arange(0, size, 2, dtype=torch.float64) / size
        # No buffer: a model cast to a smaller type must not cast these.
        self._rates = {torch.device("cpu"): settings.rotary_base**-exponent}

    def angles(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (N, 1, D) for tokens at these positions.

        Angles are made in float64: far into a long row float32 would be off by whole degrees.
        """
        if at.device not in self._rates:
            self._rates[at.device] = self._rates[torch.device("cpu")].to(at.device)
        angle = at[:, None, None].double() * self._rates[at.device]
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(dtype), angle.sin().to(dtype)


def turn(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn (N, heads, D): number i of the first half and number i of the second are one pair.

    >>> quarter = (torch.zeros(1, 1, 2), torch.ones(1, 1, 2))
    >>> turn(torch.tensor([[[1.0, 0.0]]]), quarter).tolist()
    [[[0.0, 1.0]]]
    """
    cosine, sine = angles
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-second, first], dim=-1) * sine


class Relative(nn.Module):
    """A learned score for each head and each distance, near ones told apart and far ones in buckets that grow."""

    def __init__(self, settings: Model, stack: Stack, *, both_ways: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.both_ways = (
            settings.relative_buckets,
            settings.relative_distance,
            both_ways,
        )
        self.scores = nn.Embedding(self.buckets, stack.heads)
        nn.init.normal_(self.scores.weight, std=0.1)

    def forward(self, query: Places, key: Places) -> Tensor:
        """(b, H, Q, K) to be added to the scores."""
        behind = query.at[:, :, None] - key.at[:, None, :]
        return self.scores(self._bucket(behind)).permute(0, 3, 1, 2)

    def _bucket(self, behind: Tensor) -> Tensor:
        count, first = self.buckets, 0
        if self.both_ways:
            count //= 2
            first = (behind < 0).long() * count
            behind = behind.abs()
        else:
            behind = behind.clamp(min=0)
        exact = count // 2
        grown = torch.log(behind.clamp(min=1).double() / exact) / math.log(self.distance / exact) * (count - exact)
        far = (exact + grown.long()).clamp(max=count - 1)
        return first + torch.where(behind < exact, behind, far)


class Alibi(nn.Module):
    """A fixed penalty on distance, another for each head."""

    slopes: Tensor

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(slopes(stack.heads)), persistent=False)

    def forward(self, query: Places, key: Places) -> Tensor:
        """(b, H, Q, K) to be added to the scores."""
        distance = (query.at[:, :, None] - key.at[:, None, :]).abs()
        return -distance[:, None].to(self.slopes.dtype) * self.slopes[:, None, None]


def slopes(heads: int) -> list[float]:
    """The penalty per token of distance for each head: powers of two, closed up where heads are no power of two.

    >>> slopes(2)
    [0.0625, 0.00390625]
    """
    power = 2 ** int(math.log2(heads))
    even = [2 ** (-8 * (number + 1) / power) for number in range(power)]
    between = [2 ** (-4 * (number + 1) / power) for number in range(0, 2 * (heads - power), 2)]
    return even + between
