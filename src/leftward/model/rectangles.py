"""Packed tokens laid into rectangles for attention, and back again.

On a CPU attention is fastest over rectangles: so many rows of so many queries by so many keys. One packed
batch is cut into a few of them, of rows of like lengths, so that little is computed in vain. Nothing outside
the attention door sees one.

N query tokens, M key tokens; in a rectangle b rows of Q queries and K keys; H heads share Hk key heads, G = H
/ Hk; D wide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leftward.model import sight
from leftward.model.exact import KEY_MULTIPLE, ROW_MULTIPLE, is_exact, round_up
from leftward.model.heads import Heads
from leftward.packed import Packed, Places, Segments

# Cells of one rectangle that cost as much as having one rectangle more; measured, see LOG.md.
CELLS_PER_RECTANGLE = 2_000


def divide(query_lengths: np.ndarray, key_lengths: np.ndarray) -> list[np.ndarray]:
    """Divide rows into groups of like lengths, each to become one rectangle.

    Rows are sorted by one side and cut where the two halves save the most cells, again and again until a cut
    saves less than a further rectangle costs.

    >>> [group.tolist() for group in divide(np.array([90, 3, 90, 4]), np.array([90, 3, 90, 4]))]
    [[1, 3], [0, 2]]
    """
    if is_exact():
        # Only rows of one padded size meet, so that a kernel sees the same sizes whatever else is in the
        # batch.
        sizes = np.stack([-(-query_lengths // ROW_MULTIPLE), -(-key_lengths // KEY_MULTIPLE)])
        kinds, kind = np.unique(sizes, axis=1, return_inverse=True)
        return [np.flatnonzero(kind.reshape(-1) == number) for number in range(kinds.shape[1])]
    groups, waiting = [], [np.arange(len(query_lengths))]
    while waiting:
        group = waiting.pop()
        cut = _best_cut(query_lengths[group], key_lengths[group])
        if cut is None:
            groups.append(group)
        else:
            order, place = cut
            waiting += [group[order[place:]], group[order[:place]]]
    return groups


def _best_cut(query_lengths: np.ndarray, key_lengths: np.ndarray) -> tuple[np.ndarray, int] | None:
    """The order and place of the cut that saves the most, or None where none is worth a rectangle."""
    count = len(query_lengths)
    best, least = None, count * int(query_lengths.max()) * int(key_lengths.max()) - CELLS_PER_RECTANGLE
    first = np.arange(1, count)
    for lengths in (query_lengths,) if query_lengths is key_lengths else (query_lengths, key_lengths):
        order = np.argsort(lengths, kind="stable")
        queries, keys = query_lengths[order], key_lengths[order]
        low = np.maximum.accumulate(queries)[:-1] * np.maximum.accumulate(keys)[:-1]
        high = (np.maximum.accumulate(queries[::-1]) * np.maximum.accumulate(keys[::-1]))[-2::-1]
        cells = first * low + (count - first) * high
        if count > 1 and cells.min() < least:
            least = int(cells.min())
            best = (order, int(cells.argmin()) + 1)
    return best


@dataclass(eq=False)
class Side:
    """One side of a meeting: which token stands in which cell of which rectangle."""

    tokens: list[Tensor]  # (b, W) for each rectangle; a cell that only fills up repeats its row's last token
    filler: list[Tensor]  # (b, W) whether the cell only fills up
    count: int  # how many tokens there are

    def cells(self, heads: int, table: int, offset: int) -> list[Tensor]:
        """For each rectangle the rows (b * heads * W) it takes from a table of `table` rows a token."""
        head = torch.arange(offset, offset + heads)[:, None]
        return [(tokens[:, None] * table + head).view(-1) for tokens in self.tokens]

    def fillers(self, heads: int) -> list[Tensor]:
        """For each rectangle the numbers of the cells, head by head, that only fill up."""
        return [filler[:, None].expand(-1, heads, -1).reshape(-1).nonzero().view(-1) for filler in self.filler]

    def inverse(self, heads: int) -> Tensor:
        """(tokens, heads): where each head of each token stands among the cells of all rectangles."""
        places = torch.empty(self.count, heads, dtype=torch.long)
        before = 0
        for tokens, filler in zip(self.tokens, self.filler, strict=True):
            rows, width = tokens.shape
            number = before + torch.arange(rows * heads * width).view(rows, heads, width)
            places[tokens[~filler]] = number.transpose(1, 2)[~filler]
            before += number.numel()
        return places

    def size(self, heads: int) -> int:
        """The number of cells of all rectangles, head by head."""
        return heads * sum(tokens.numel() for tokens in self.tokens)


@dataclass(eq=False)
class Meeting:
    """Packed tokens that look and packed tokens looked at, before any rule is applied.

    One meeting serves all layers of a stack: its rectangles, numbers and matrices are made once.
    """

    queries: Packed
    keys: Packed
    shapes: list[tuple[int, int, int]] = field(init=False)  # rows, queries, keys of each rectangle
    places: list[tuple[Places, Places]] = field(init=False)  # of the cells: (b, Q) and (b, K)

    def __post_init__(self) -> None:
        if self.queries.segments is None or self.keys.segments is None:
            raise TypeError("a decoding step meets a cache, not a packed batch")
        self._memo: dict[Hashable, Any] = {}
        self._lay_out(self.queries.segments, self.keys.segments)

    @property
    def is_own(self) -> bool:
        """Whether the tokens look at themselves."""
        return self.queries is self.keys

    @property
    def same_places(self) -> bool:
        """Whether queries and keys are the same tokens, each row from its beginning."""
        return self.is_own and not self.queries.segments.starts.any()  # type: ignore[union-attr]

    def _lay_out(self, queries: Segments, keys: Segments) -> None:
        of = np.arange(len(queries.rows)) if self.is_own else _find(queries.reads, keys.rows)
        key_lengths = queries.lengths if self.is_own else keys.lengths[of]
        self._each_once = len(np.unique(of)) == len(of) == len(keys.rows)
        multiple = (ROW_MULTIPLE, KEY_MULTIPLE) if is_exact() else (1, 1)
        self.shapes, self.places = [], []
        self._query = Side([], [], len(self.queries))
        self._key = Side([], [], len(self.keys))
        for group in divide(queries.lengths, key_lengths):
            width = round_up(int(queries.lengths[group].max()), multiple[0])
            depth = round_up(int(key_lengths[group].max()), multiple[1])
            query = _place(self._query, queries, group, width)
            key = _place(self._key, keys, of[group], depth)
            key = key._replace(row=key.row.masked_fill(self._key.filler[-1], sight.NOBODY))
            self.shapes.append((len(group), width, depth))
            self.places.append((self._move_places(query), self._move_places(key)))

    def _once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """The value of this name, made the first time it is asked for."""
        if name not in self._memo:
            self._memo[name] = make()
        return self._memo[name]

    def matrices(self, rule: sight.Rule, dtype: torch.dtype) -> list[Tensor]:
        """The rule as 0 and -inf, (b, 1, 1, Q, K) for each rectangle."""
        return self._once(
            (rule, dtype), lambda: [sight.matrix(rule, *pair, dtype)[:, None, None] for pair in self.places]
        )

    def spread_own(self, table: Tensor, heads: Heads) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Queries, keys and values of one table (N, H + 2 Hk, D) into rectangles."""

        def number() -> tuple[Tensor, list[Tensor]]:
            queries, keys = self._query.size(heads.query), self._key.size(heads.key)
            own = self._key.inverse(heads.key)
            inverse = torch.cat([self._query.inverse(heads.query), own + queries, own + queries + keys], dim=1)
            return self._move(inverse.view(-1)), self._own_cells(heads)

        if not torch.is_grad_enabled():
            # Where nothing goes back, the way back need not be numbered.
            cells = self._once(("own cells", heads), lambda: self._own_cells(heads))
            flat = table.view(-1, heads.size)
            parts = tuple(flat.index_select(0, cell) for cell in cells)
        else:
            inverse, cells = self._once(("own", heads), number)
            parts = _Spread.apply(table.view(-1, heads.size), inverse, *cells)
        third = len(self.shapes)
        return (
            self._shape(parts[:third], heads, 0),
            self._shape(parts[third : 2 * third], heads, 1),
            self._shape(parts[2 * third :], heads, 1),
        )

    def _own_cells(self, heads: Heads) -> list[Tensor]:
        every = heads.query + 2 * heads.key
        cells = (
            self._query.cells(heads.query, every, 0)
            + self._key.cells(heads.key, every, heads.query)
            + self._key.cells(heads.key, every, heads.query + heads.key)
        )
        return [self._move(cell) for cell in cells]

    def spread_queries(self, table: Tensor, heads: Heads) -> list[Tensor]:
        """Queries (N, H, D) into rectangles (b, Hk, G, Q, D)."""

        def number() -> tuple[Tensor, list[Tensor]]:
            cells = self._query.cells(heads.query, heads.query, 0)
            return self._move(self._query.inverse(heads.query).view(-1)), [self._move(cell) for cell in cells]

        inverse, cells = self._once(("queries", heads), number)
        return self._shape(_Spread.apply(table.view(-1, heads.size), inverse, *cells), heads, 0)

    def spread_keys(self, table: Tensor, heads: Heads) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of one table (M, 2 Hk, D) into rectangles (b, Hk, K, D)."""

        def number() -> tuple[Tensor | None, list[Tensor]]:
            cells = self._key.cells(heads.key, 2 * heads.key, 0) + self._key.cells(heads.key, 2 * heads.key, heads.key)
            inverse = None
            # A source that several rows read, or none, has no one cell to take its gradient from.
            if self._each_once:
                own = self._key.inverse(heads.key)
                inverse = self._move(torch.cat([own, own + self._key.size(heads.key)], dim=1).view(-1))
            return inverse, [self._move(cell) for cell in cells]

        inverse, cells = self._once(("keys", heads), number)
        flat = table.view(-1, heads.size)
        parts = (
            [flat.index_select(0, cell) for cell in cells] if inverse is None else _Spread.apply(flat, inverse, *cells)
        )
        half = len(self.shapes)
        return self._shape(parts[:half], heads, 1), self._shape(parts[half:], heads, 1)

    def collect(self, values: list[Tensor], heads: Heads) -> Tensor:
        """Rectangles (b, Hk, G, Q, D) back to tokens (N, H * D)."""

        def number() -> tuple[Tensor, list[Tensor]]:
            cells = self._query.cells(heads.query, heads.query, 0) + self._query.fillers(heads.query)
            return self._move(self._query.inverse(heads.query).view(-1)), [self._move(cell) for cell in cells]

        inverse, cells = self._once(("collect", heads), number)
        flat = [value.reshape(-1, heads.size) for value in values]
        return _Collect.apply(inverse, len(flat), *cells, *flat).view(len(self.queries), -1)

    def _shape(self, parts: Sequence[Tensor], heads: Heads, side: int) -> list[Tensor]:
        if side:
            return [part.view(b, heads.key, k, -1) for part, (b, _, k) in zip(parts, self.shapes, strict=True)]
        group = heads.query // heads.key
        return [part.view(b, heads.key, group, q, -1) for part, (b, q, _) in zip(parts, self.shapes, strict=True)]

    def _move_places(self, places: Places) -> Places:
        return Places(*map(self._move, places))

    def _move(self, numbers: Tensor) -> Tensor:
        return numbers.to(self.queries.ids.device)


def _find(wanted: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Where each wanted name stands among the names."""
    order = np.argsort(names, kind="stable")
    found = order[np.minimum(np.searchsorted(names, wanted, sorter=order), len(names) - 1)]
    if not np.array_equal(names[found], wanted):
        missing = sorted(set(wanted.tolist()) - set(names.tolist()))
        raise ValueError(f"rows read sources that are not there: {missing[:5]}")
    return found


def _place(side: Side, segments: Segments, group: np.ndarray, width: int) -> Places:
    """Lay a group of rows into the next rectangle of this side, and say where its cells stand."""
    begins = (np.cumsum(segments.lengths) - segments.lengths)[group]
    lengths = segments.lengths[group, None]
    column = np.arange(width)
    within = np.minimum(column, lengths - 1)
    side.tokens.append(torch.from_numpy(begins[:, None] + within))
    side.filler.append(torch.from_numpy(column >= lengths))
    parts = (segments.rows[group, None], within + segments.starts[group, None], segments.reads[group, None])
    return Places(*(torch.from_numpy(np.broadcast_to(part, within.shape).copy()) for part in parts))


class _Spread(torch.autograd.Function):
    """Rows of a table to cells, and the cells' gradients back: a selection both ways, since each row has one cell."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, inverse: Tensor, *cells: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(inverse)
        return tuple(table.index_select(0, cell) for cell in cells)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        together = torch.cat(gradients) if len(gradients) > 1 else gradients[0]
        return together.index_select(0, inverse), None, *(None for _ in gradients)


class _Collect(torch.autograd.Function):
    """Cells back to rows of a table; a cell that only fills up gets a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, inverse: Tensor, count: int, *arguments: Tensor) -> Tensor:
        cells, fillers, values = (arguments[part * count : (part + 1) * count] for part in range(3))
        ctx.count = count
        ctx.save_for_backward(*cells, *fillers)
        together = torch.cat(values) if count > 1 else values[0]
        return together.index_select(0, inverse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cells, fillers = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        parts = (gradient.index_select(0, cell) for cell in cells)
        zeroed = (
            part.index_fill_(0, filler, 0) if filler.numel() else part
            for part, filler in zip(parts, fillers, strict=True)
        )
        return None, None, *(None for _ in range(2 * ctx.count)), *zeroed
