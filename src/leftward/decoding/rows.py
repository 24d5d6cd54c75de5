"""The rows being written: what is asked for, what is written so far, and what comes of it.

A row takes one group of slots: one slot, or one for each hypothesis of a beam. G groups of W slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """One row to write.

    `prompt` is read first and begins with the start token; at most `limit` tokens are written after it.
    """

    row: int  # its number in the input: draws depend on it
    prompt: Sequence[int]
    limit: int
    source: Sequence[int] | None = None
    sample: int = 0


class Output(NamedTuple):
    """One text that was written.

    `total` is the sum of its tokens' log-probabilities, `score` what the strategy ranks by. The end token is among the
    tokens where it was written.
    """

    tokens: list[int]
    score: float
    total: float


class Choice(NamedTuple):
    """What a strategy chose: the next token of every slot, whose words it follows, and which groups are done."""

    tokens: Tensor  # (G, W)
    parents: Tensor | None  # (G, W) numbers of slots; None where every slot follows itself
    done: Tensor  # (G,)


@dataclass(eq=False)
class Lineage:
    """Which token every slot chose at each position, and whom it followed: read backwards, a text."""

    tokens: Tensor  # (positions, G, W)
    parents: Tensor  # (positions, G, W), numbers within the group
    _group: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._group = torch.arange(self.tokens.shape[1], device=self.tokens.device)

    @classmethod
    def allocate(cls, positions: int, groups: int, width: int, device: torch.device | str) -> Lineage:
        """Room for so many positions of so many groups."""
        shape = (positions, groups, width)
        own = torch.arange(width, device=device).expand(shape).contiguous()
        return cls(torch.zeros(shape, dtype=torch.long, device=device), own)

    def record(self, position: Tensor, tokens: Tensor, parents: Tensor | None) -> None:
        """Note a choice (G, W) of every group at its own position (G,)."""
        self.tokens[position, self._group] = tokens
        if parents is not None:
            self.parents[position, self._group] = parents

    def trace(self, group: int, length: int, slot: int) -> list[int]:
        """The tokens that lead to what this slot had chosen after `length` positions."""
        tokens, parents = self.tokens[:length, group].tolist(), self.parents[:length, group].tolist()
        text = []
        for position in range(length - 1, -1, -1):
            text.append(tokens[position][slot])
            slot = parents[position][slot]
        return text[::-1]

    def select(self, groups: Tensor) -> Lineage:
        """Only these groups."""
        return Lineage(self.tokens[:, groups], self.parents[:, groups])
