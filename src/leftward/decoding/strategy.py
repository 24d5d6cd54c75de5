"""What every strategy offers. A strategy only chooses; the engine owns the loop, the slots and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from leftward.decoding.rows import Choice, Output, Request


@dataclass(frozen=True)
class Room:
    """How much a strategy has to hold: groups of rows, and positions of each."""

    groups: int
    positions: int
    device: torch.device
    end: int | None  # the token that ends a text; None to write on whatever comes
    totals: bool = True  # whether anybody wants to know the log-probabilities of a text


class Chooser(Protocol):
    """A strategy at work on some groups of rows."""

    @property
    def width(self) -> int:
        """Slots of one group."""
        ...

    def enter(self, groups: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin new rows in these groups."""
        ...

    def choose(self, scores: Tensor, position: Tensor, last: Tensor) -> Choice:
        """Choose from scores (G * W, vocabulary).

        `position` (G,) counts the tokens each group has written, `last` (G,) says whose limit this token reaches. A
        group that is done may be asked again before the engine notices; nothing of its outputs may change then.
        """
        ...

    def outputs(self, group: int, length: int) -> list[Output]:
        """What a group that is done has written in `length` positions, the best first."""
        ...

    def select(self, groups: Tensor) -> Self:
        """The same, holding only these groups, in this order."""
        ...
