"""Who may look at whom. This is the only place in Leftward that says so.

A rule compares where a query stands with where a key stands (row, position, source) and answers yes or no. It
is written once and rendered three ways: `matrix` (0 and -inf, added to the scores), `is_kernel_triangle`
(what the fused attention kernel may be told instead) and `mask_function` (for a compiled block-sparse
kernel). Training, prefill, a cached step and any window are the same comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leftward.packed import Places

# The position of an unused cell of a cache: to the right of every query there will ever be. It fits 32 bits,
# which compiled kernels prefer, and leaves room to subtract.
UNREACHABLE = 2**30

# The row of a cell that exists only to make a rectangle full.
NOBODY = -1


class Rule(Protocol):
    """May this query look at this key?"""

    def __call__(self, query: Places, key: Places) -> Tensor:
        """True where the query may look; the places broadcast against each other."""
        ...


@dataclass(frozen=True)
class Leftward:
    """The decoder's rule: a key of the same row that does not stand to the right.

    With a window of w a query sees w keys, itself included.

    >>> at = torch.arange(3); row = torch.zeros(3, dtype=torch.long)
    >>> query, key = Places(row[:, None], at[:, None], row[:, None]), Places(row[None], at[None], row[None])
    >>> Leftward()(query, key).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    >>> Leftward(window=2)(query, key).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    window: int | None = None

    def __call__(self, query: Places, key: Places) -> Tensor:
        """True where the key does not stand to the right of the query in its row."""
        sees = (query.row == key.row) & (key.at <= query.at)
        return sees if self.window is None else sees & (query.at - key.at < self.window)


@dataclass(frozen=True)
class WholeRow:
    """The encoder's rule: every key of the same row; with a window of w, those less than w away."""

    window: int | None = None

    def __call__(self, query: Places, key: Places) -> Tensor:
        """True where both stand in one row, and near enough."""
        sees = query.row == key.row
        return sees if self.window is None else sees & ((query.at - key.at).abs() < self.window)


@dataclass(frozen=True)
class SameSource:
    """The rule of cross-attention: every token of the source that the query's row reads."""

    def __call__(self, query: Places, key: Places) -> Tensor:
        """True where the key's row is the source of the query's row."""
        return query.reads == key.row


def outer(query: Places, key: Places) -> tuple[Places, Places]:
    """Queries (..., Q) and keys (..., K) set against each other as (..., Q, K)."""
    return Places(*(part.unsqueeze(-1) for part in query)), Places(*(part.unsqueeze(-2) for part in key))


def matrix(rule: Rule, query: Places, key: Places, dtype: torch.dtype = torch.float32) -> Tensor:
    """The rule as a matrix (..., Q, K) of 0 and -inf, to be added to the scores.

    >>> at = torch.arange(2); row = torch.zeros(2, dtype=torch.long)
    >>> matrix(Leftward(), Places(row, at, row), Places(row, at, row)).tolist()
    [[0.0, -inf], [0.0, 0.0]]
    """
    sees = rule(*outer(query, key))
    return torch.where(sees, 0.0, -torch.inf).to(dtype)


def is_kernel_triangle(rule: Rule, *, same_places: bool) -> bool:
    """Whether the fused kernel's own causal triangle says the same as the rule.

    It does only for the plain decoder rule where queries and keys are the very same places, each row from its
    beginning: the kernel counts columns, and with one query against many keys its triangle would show the
    first key alone. Everywhere else the kernel is given the matrix.
    """
    return same_places and rule == Leftward()


def mask_function(rule: Rule, query: Places, key: Places) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule as a function of (batch, head, query number, key number), as FlexAttention wants it.

    Query and key numbers count tokens of the packed stream.
    """

    def may_look(batch: Tensor, head: Tensor, query_number: Tensor, key_number: Tensor) -> Tensor:
        del batch, head  # all rows travel in one stream, and every head sees the same
        return rule(
            Places(query.row[query_number], query.at[query_number], query.reads[query_number]),
            Places(key.row[key_number], key.at[key_number], key.reads[key_number]),
        )

    return may_look
