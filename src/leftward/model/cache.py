"""Keys and values of what is already written, kept for the steps to come.

A cache is one value with verbs: `append`, `reorder`, `keep`. It holds the self-attention of all layers, the
cross-attention of all layers, and where every key stands. It is allocated once, slots by capacity, and
written in place; an unused cell stands where no query can reach. A layer with a window needs no more cells
than its window: its cells are a ring.

S slots, C cells a slot, Hk key heads, D wide; B sources of at most L tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leftward.errors import CacheError
from leftward.model import sight
from leftward.model.exact import KEY_MULTIPLE, ROW_MULTIPLE, is_exact, round_up
from leftward.model.heads import Heads
from leftward.packed import Packed, Places
from leftward.settings import Model


@dataclass(eq=False)
class Ring:
    """Where the keys of all layers with one capacity stand: (S, C) positions."""

    at: Tensor
    window: int | None

    @property
    def capacity(self) -> int:
        """How many cells a slot has."""
        return self.at.shape[1]


@dataclass(eq=False)
class Cache:
    """What a model remembers of the rows being written.

    Attributes:
        slots: how many rows can be written at once.
        capacity: how long a row may become.
        filled: no cell at or beyond this number is in use, in any slot; counted by the host.
    """

    slots: int
    capacity: int
    own: list[Tensor]  # for each layer (2, S, Hk, C, D): keys and values
    ring_of: list[Ring]  # for each layer; layers of one capacity and window share one
    across: list[Tensor] = field(default_factory=list)  # for each layer (2, B, Hk, L, D)
    source_row: Tensor | None = None  # (B, L): the source each cell belongs to, NOBODY where it is unused
    filled: int = 0
    source_filled: int = 0
    _steps_and_sources: CachedMeeting | None = None

    @classmethod
    def allocate(
        cls,
        settings: Model,
        *,
        slots: int,
        capacity: int,
        sources: int = 0,
        source_capacity: int = 0,
        chunk: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Cache:
        """Room for `slots` rows of up to `capacity` tokens, and for `sources` sources of up to `source_capacity`.

        `chunk` is the largest number of tokens one call adds to a slot; a ring has to hold them beside its
        window.

        >>> from leftward.settings import Model, Stack
        >>> model = Model(vocabulary=9, width=8, decoder=Stack(layers=2, heads=2, window=(0, 4)))
        >>> cache = Cache.allocate(model, slots=3, capacity=100)
        >>> [tuple(layer.shape) for layer in cache.own]
        [(2, 3, 2, 100, 4), (2, 3, 2, 4, 4)]
        """
        stack = settings.decoder
        if sources and slots % sources:
            raise CacheError(
                f"{slots} slots cannot share {sources} sources evenly",
                hint="take as many slots for each source",
            )
        rings: dict[int | None, Ring] = {}
        own, ring_of = [], []
        key_heads, size = stack.key_heads or stack.heads, settings.head_size(stack)
        for layer in range(stack.layers):
            window = stack.window_of(layer)
            cells = capacity if window is None else min(capacity, window + chunk - 1)
            if is_exact():
                # A whole multiple of keys can be read then. And a ring turns keys round by what others in the batch
                # need, so that they are summed in another order: all of them are kept instead.
                cells = round_up(capacity, KEY_MULTIPLE)
            if window not in rings:
                rings[window] = Ring(torch.full((slots, cells), sight.UNREACHABLE, device=device), window)
            ring_of.append(rings[window])
            own.append(torch.zeros(2, slots, key_heads, cells, size, dtype=dtype, device=device))
        across, source_row = [], None
        if sources:
            cells = round_up(source_capacity, KEY_MULTIPLE) if is_exact() else source_capacity
            shape = (2, sources, key_heads, cells, size)
            across = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(stack.layers)]
            source_row = torch.full((sources, cells), sight.NOBODY, device=device)
        return cls(slots, capacity, own, ring_of, across, source_row)

    @property
    def bytes(self) -> int:
        """The memory it holds."""
        places = [ring.at for ring in self.rings] + ([] if self.source_row is None else [self.source_row])
        parts = [*self.own, *self.across, *places]
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def rings(self) -> list[Ring]:
        """Each ring once."""
        return list(dict.fromkeys(self.ring_of))

    def meet(self, batch: Packed) -> list[CachedMeeting]:
        """Make room for the tokens of a batch; returns the meeting of each layer with its own keys."""
        if torch.is_grad_enabled():
            raise CacheError(
                "a cache is written in place, which gradients cannot follow",
                hint="call the model inside torch.no_grad() or torch.inference_mode() when it has a cache",
            )
        if batch.furthest >= self.capacity:
            raise CacheError(
                f"position {batch.furthest} does not fit into a cache for {self.capacity} tokens",
                hint="allocate a larger capacity, or stop writing earlier",
            )
        self.filled = max(self.filled, batch.furthest + 1)
        meetings = {ring.window: CachedMeeting.with_own(ring, batch) for ring in self.rings}
        return [meetings[ring.window] for ring in self.ring_of]

    def meet_sources(self, batch: Packed) -> CachedMeeting:
        """The meeting of a batch with the sources its rows read."""
        if self.source_row is None:
            raise CacheError("this cache has no room for sources", hint="allocate it with sources=")
        if not self.source_filled:
            raise CacheError("this cache has read no source yet", hint="call model.read(source, cache) first")
        depth = round_up(self.source_filled, KEY_MULTIPLE) if is_exact() else self.source_filled
        if batch.segments is not None or is_exact():
            return CachedMeeting.with_sources(self.source_row[:, :depth], batch)
        if self._steps_and_sources is None:
            # Every step reads the sources in the same way, until others are admitted.
            self._steps_and_sources = CachedMeeting.with_sources(self.source_row[:, :depth], batch)
        return self._steps_and_sources

    def append(self, layer: int, keys_and_values: Tensor, meeting: CachedMeeting) -> Tensor:
        """Write keys and values (N, 2, Hk, D) of a batch; returns the layer's store (2, S, Hk, C, D)."""
        store = self.own[layer]
        _write(store, keys_and_values, meeting.cells(store))
        return store

    def read(self, layer: int, keys_and_values: Tensor, sources: Packed) -> None:
        """Write keys and values (M, 2, Hk, D) of whole sources for the cross-attention of this layer."""
        store = self.across[layer]
        _, _, heads, capacity, _ = store.shape
        head = torch.arange(heads, device=store.device)
        cells = (sources.row[:, None] * heads + head) * capacity + sources.at[:, None]
        _write(store, keys_and_values, _both(cells.view(-1), store))

    def admit(self, sources: Packed) -> None:
        """Note which source cells are in use; what a source's cells held before is out of sight."""
        if self.source_row is None or sources.furthest >= self.source_row.shape[1]:
            room = 0 if self.source_row is None else self.source_row.shape[1]
            raise CacheError(
                f"a source of {sources.furthest + 1} tokens does not fit into room for {room}",
                hint="allocate the cache with a larger source_capacity",
            )
        self._steps_and_sources = None
        self.source_filled = max(self.source_filled, sources.furthest + 1)
        self.source_row[sources.row] = sight.NOBODY
        self.source_row[sources.row, sources.at] = sources.row

    def reorder(self, parents: Tensor) -> None:
        """Let slot i go on from what slot parents[i] has written. Sources stay where they are."""
        for ring in self.rings:
            ring.at.copy_(ring.at.index_select(0, parents))
        for store, ring in zip(self.own, self.ring_of, strict=True):
            used = store[..., : min(self.filled, ring.capacity), :]
            used.copy_(used.index_select(1, parents))

    def narrow(self, slots: Tensor, sources: Tensor) -> Cache:
        """A smaller cache that goes on with these slots and sources, in this order."""
        rings = {ring.window: Ring(ring.at[slots], ring.window) for ring in self.rings}
        row = None
        if self.source_row is not None:
            kept = self.source_row[sources]
            row = torch.arange(len(kept), device=kept.device)[:, None].where(kept != sight.NOBODY, sight.NOBODY)
        return Cache(
            slots=len(slots),
            capacity=self.capacity,
            own=[store[:, slots] for store in self.own],
            ring_of=[rings[ring.window] for ring in self.ring_of],
            across=[store[:, sources] for store in self.across],
            source_row=row,
            filled=self.filled,
            source_filled=self.source_filled,
        )

    def keep(self, kept: Tensor) -> None:
        """Forget what every slot has written where `kept` (S,) is false."""
        for ring in self.rings:
            ring.at.masked_fill_(~kept[:, None], sight.UNREACHABLE)


def _write(store: Tensor, keys_and_values: Tensor, cells: Tensor) -> None:
    """Keys and values (N, 2, Hk, D) into the numbered cells of a store (2, S, Hk, C, D)."""
    size = store.shape[-1]
    values = keys_and_values.transpose(0, 1).reshape(-1, size)
    store.view(-1, size).index_copy_(0, cells, values if values.dtype == store.dtype else values.to(store.dtype))


def _both(cells: Tensor, store: Tensor) -> Tensor:
    """The cells of keys, and after them those of values."""
    return torch.cat([cells, cells + store[0].numel() // store.shape[-1]])


@dataclass(eq=False)
class CachedMeeting:
    """Tokens that look, and the cells of a cache they look at: one rectangle.

    In a step it has one query for each slot, and where slots share a source, one row of queries for each
    source; nothing is moved then. Otherwise each row of the batch looks at the cells of its own slot.

    b rows of Q queries look at K cells.
    """

    queries: Packed
    key: Places  # (b, K)
    columns: Tensor  # (N,) the cell of its slot that each token is written to; its own position for sources
    holders: Tensor | None = None  # (b,) the slot or source each row looks at; None for all of them, in order
    tokens: Tensor | None = None  # (b, Q) which token stands in which query cell; None in a step
    _memo: dict[Hashable, Any] = field(default_factory=dict)

    # A cache holds other tokens than the batch, so the fused kernel's own triangle never fits.
    same_places = False

    def __post_init__(self) -> None:
        # Then every row is one query, which stays where it is.
        self._is_bare_step = (
            self.tokens is None and self.queries.ids.shape[0] == self.key.row.shape[0] and not is_exact()
        )

    @classmethod
    def with_own(cls, ring: Ring, batch: Packed) -> CachedMeeting:
        """Tokens, and what their own slots hold once theirs are written too."""
        columns = batch.at if ring.window is None else batch.at % ring.capacity
        depth = min(batch.furthest + 1, ring.capacity)
        depth = round_up(depth, KEY_MULTIPLE) if is_exact() else depth
        # Only where a slot goes round can new keys take the cells of keys that are still in sight.
        if batch.segments is not None and ring.window is not None and batch.furthest >= ring.capacity:
            longest, room = int(batch.segments.lengths.max()), ring.capacity - ring.window + 1
            if longest > room:
                raise CacheError(
                    f"{longest} tokens at once do not fit beside a window of {ring.window} in {ring.capacity} cells",
                    hint=f"add at most {room} tokens at a time, or allocate the cache with chunk={longest}",
                )
        ring.at[batch.row, columns] = batch.at
        holders, tokens = _rows(batch, None if batch.segments is None else batch.segments.rows)
        at = ring.at[:, :depth] if holders is None else ring.at[holders, :depth]
        row = (torch.arange(len(at), device=at.device) if holders is None else holders)[:, None].expand_as(at)
        return cls(batch, Places(row, at, row), columns, holders, tokens)

    @classmethod
    def with_sources(cls, source_row: Tensor, batch: Packed) -> CachedMeeting:
        """Tokens, and the sources their rows read."""
        holders, tokens = _rows(batch, None if batch.segments is None else batch.segments.reads)
        row = source_row if holders is None else source_row[holders]
        # The rule of cross-attention knows no positions; the number of the cell is as good as any.
        at = torch.arange(row.shape[1], device=row.device).expand_as(row)
        return cls(batch, Places(row, at, row), batch.at, holders, tokens)

    def matrices(self, rule: sight.Rule, dtype: torch.dtype) -> list[Tensor]:
        """The rule as 0 and -inf, (b, 1, 1, Q, K)."""
        made = self._memo.get((rule, dtype))
        if made is None:
            made = self._memo[rule, dtype] = [sight.matrix(rule, *self.places[0], dtype)[:, None, None]]
        return made

    @property
    def places(self) -> list[tuple[Places, Places]]:
        """Where the cells stand: (b, Q) and (b, K)."""
        made = self._memo.get("places")
        if made is None:
            if self.tokens is None:
                rows, widened = len(self.key.row), self._widened()
                query = Places(*(part.view(rows, -1)[:, widened] for part in self.queries.places))
            else:
                query = Places(*(part[self.tokens] for part in self.queries.places))
            made = self._memo["places"] = [(query, self.key)]
        return made

    def _widened(self) -> slice | Tensor:
        """The query columns of a step: all, and under exact arithmetic the last one again up to a multiple."""
        if not is_exact():
            return slice(None)
        width = len(self.queries) // len(self.key.row)
        return torch.arange(round_up(width, ROW_MULTIPLE), device=self.queries.ids.device).clamp(max=width - 1)

    def spread_queries(self, table: Tensor, heads: Heads) -> list[Tensor]:
        """Queries (N, H, D) as (b, Hk, G, Q, D)."""
        group = heads.query // heads.key
        if self._is_bare_step:
            return [table.reshape(-1, heads.key, group, 1, heads.size)]
        if self.tokens is None:
            queries = table.reshape(len(self.key.row), -1, heads.key, group, heads.size)[:, self._widened()]
        else:
            queries = table[self.tokens].view(*self.tokens.shape, heads.key, group, heads.size)
        return [queries.permute(0, 2, 3, 1, 4)]

    def hold(self, store: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and values (b, Hk, K, D) that are looked at, out of a layer's store (2, S, Hk, C, D)."""
        depth = self.key.at.shape[1]
        if self.holders is None:
            keys, values = store.narrow(3, 0, depth).unbind(0)
            return [keys], [values]
        return [store[0, self.holders, :, :depth]], [store[1, self.holders, :, :depth]]

    def collect(self, values: list[Tensor], heads: Heads) -> Tensor:
        """The rectangle (b, Hk, G, Q, D) back to tokens (N, H * D)."""
        if self._is_bare_step:
            return values[0].reshape(-1, heads.query * heads.size)
        rows = values[0].permute(0, 3, 1, 2, 4)
        if self.tokens is None:
            rows = rows[:, : len(self.queries) // len(rows)]
            return rows.reshape(len(self.queries), heads.query * heads.size)
        return rows.reshape(*self.tokens.shape, -1)[self._real()]

    def cells(self, store: Tensor) -> Tensor:
        """Where the keys of each head of each token are written, numbered over a store, and after them the values."""
        made = self._memo.get("cells")
        if made is None:
            heads, capacity = store.shape[2:4]
            head = torch.arange(heads, device=store.device)
            own = (self.queries.row[:, None] * heads + head) * capacity + self.columns[:, None]
            made = self._memo["cells"] = _both(own.view(-1), store)
        return made

    def _real(self) -> Tensor:
        """(b, Q) which query cells hold a token of their own: the packed order is row after row."""
        made = self._memo.get("real")
        if made is None:
            lengths = torch.from_numpy(self.queries.segments.lengths)  # type: ignore[union-attr]
            made = torch.arange(self.tokens.shape[1]) < lengths[:, None]  # type: ignore[union-attr]
            self._memo["real"] = made = made.to(self.queries.ids.device)
        return made


def _rows(batch: Packed, names: np.ndarray | None) -> tuple[Tensor | None, Tensor | None]:
    """Who holds what each row looks at, and the tokens (b, Q) of each row, the last one repeated."""
    if names is None or batch.segments is None:
        return None, None
    lengths = batch.segments.lengths
    longest = int(lengths.max())
    width = round_up(longest, ROW_MULTIPLE) if is_exact() else longest
    begins = np.cumsum(lengths) - lengths
    tokens = begins[:, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
    device = batch.ids.device
    return torch.from_numpy(names).to(device), torch.from_numpy(tokens).to(device)
