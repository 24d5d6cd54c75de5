"""The one batch everybody passes on: the tokens of many rows, end to end, with no padding between them.

N tokens of all rows together, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Places(NamedTuple):
    """Where tokens stand: their row, their position in it, and the source that row reads."""

    row: Tensor
    at: Tensor
    reads: Tensor


@dataclass(frozen=True, eq=False)
class Segments:
    """What the host knows of a packed batch, so that nothing has to be read back from the device.

    Each row is one unbroken run of tokens: `rows` names them in order, `starts` holds the position of each
    one's first token (0 but for the continuation of a row in a cache), `lengths` its number of tokens,
    `reads` its source.
    """

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    reads: np.ndarray


@dataclass(frozen=True, eq=False)
class Packed:
    """Tokens of many rows, end to end.

    Attributes:
        ids: (N,) the tokens.
        row: (N,) the row each belongs to.
        at: (N,) its position in that row.
        reads: (N,) the source its row reads; meaningless on the source side.
        counts: (N,) which predictions count; None where all do.
        furthest: no position in this batch lies beyond it; known to the host, so that nothing is read back.
        segments: what the host knows, or None for one token in each slot of a cache, slot after slot.
    """

    ids: Tensor
    row: Tensor
    at: Tensor
    reads: Tensor
    furthest: int
    counts: Tensor | None = None
    segments: Segments | None = None

    def __len__(self) -> int:
        return self.ids.numel()

    @property
    def places(self) -> Places:
        """Row, position and source of every token."""
        return Places(self.row, self.at, self.reads)

    def to(self, device: torch.device | str) -> Packed:
        """The same batch on another device."""
        move = {name: getattr(self, name).to(device) for name in ("ids", "row", "at", "reads")}
        return replace(self, **move, counts=None if self.counts is None else self.counts.to(device))

    def with_ids(self, ids: Tensor) -> Packed:
        """The same rows holding other tokens."""
        return replace(self, ids=ids)


def pack(
    rows: Sequence[Sequence[int] | np.ndarray],
    *,
    names: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
    reads: Sequence[int] | None = None,
    uncounted: Sequence[int] | None = None,
) -> Packed:
    """Lay rows end to end.

    Args:
        rows: token ids, row by row.
        names: the number of each row; 0, 1, 2, ... by default.
        starts: the position of each row's first token; 0 by default.
        reads: the source each row reads; the one of its own number by default.
        uncounted: how many leading predictions of each row do not count; none by default.

    >>> batch = pack([[5, 6, 7], [8, 9]])
    >>> batch.ids.tolist(), batch.row.tolist(), batch.at.tolist()
    ([5, 6, 7, 8, 9], [0, 0, 0, 1, 1], [0, 1, 2, 0, 1])
    """
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    if not lengths.all():
        raise ValueError(f"row {int(lengths.argmin())} has no token, and nothing can be predicted from nothing")
    named = np.arange(len(rows)) if names is None else np.asarray(names, dtype=np.int64)
    started = np.zeros(len(rows), dtype=np.int64) if starts is None else np.asarray(starts, dtype=np.int64)
    read = named if reads is None else np.asarray(reads, dtype=np.int64)
    if len(set(named.tolist())) < len(rows):
        raise ValueError(f"row names come twice: {named.tolist()}; a row is one unbroken run of tokens")
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(rows) else 0) - np.repeat(ends - lengths, lengths)
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]) if len(rows) else within
    counts = None
    if uncounted is not None and any(uncounted):
        counts = torch.from_numpy(within >= np.repeat(np.asarray(uncounted), lengths))
    return Packed(
        ids=torch.from_numpy(ids),
        row=torch.from_numpy(np.repeat(named, lengths)),
        at=torch.from_numpy(within + np.repeat(started, lengths)),
        reads=torch.from_numpy(np.repeat(read, lengths)),
        furthest=int((started + lengths).max(initial=1)) - 1,
        counts=counts,
        segments=Segments(named, started, lengths, read),
    )


def step(ids: Tensor, at: Tensor, *, furthest: int, sources: int = 0) -> Packed:
    """One token for each slot of a cache: what a decoding step reads.

    `furthest` is the largest position in `at`, or more: the host keeps count of it without reading anything
    back. With `sources`, consecutive slots share a source: 6 slots and 2 sources make slots 0 to 2 read
    source 0.

    >>> step(torch.tensor([7, 8]), torch.tensor([3, 5]), furthest=5).row.tolist()
    [0, 1]
    """
    slots = torch.arange(ids.numel(), device=ids.device)
    reads = slots // (ids.numel() // sources) if sources else slots
    return Packed(ids=ids, row=slots, at=at, reads=reads, furthest=furthest)


def unpack(values: Tensor, batch: Packed) -> list[Tensor]:
    """One value per token, cut back into rows.

    >>> [part.tolist() for part in unpack(torch.arange(5), pack([[1, 1, 1], [1, 1]]))]
    [[0, 1, 2], [3, 4]]
    """
    if batch.segments is None:
        return list(values.split(1))
    return list(values.split(batch.segments.lengths.tolist()))
