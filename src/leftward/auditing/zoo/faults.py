"""Faults to plant into a sound model, each a mistake that somebody has shipped.

Every function breaks a model in place. None of these can be reached by a setting of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leftward.model import sight
from leftward.model.cache import Cache
from leftward.model.layers import Across, Own
from leftward.model.transformer import Transformer
from leftward.packed import Packed, Places, pack
from leftward.training.objective import Lesson

Fault = Callable[[Transformer], None]


@dataclass(frozen=True)
class PeekingRule:
    """One token of the future is in sight: a mask whose diagonal is off by one."""

    def __call__(self, query: Places, key: Places) -> Tensor:
        """May this query look at this key?"""
        return (query.row == key.row) & (key.at <= query.at + 1)


@dataclass(frozen=True)
class BlindRule:
    """The key just before the query is out of sight: a mask that hides too much."""

    def __call__(self, query: Places, key: Places) -> Tensor:
        """May this query look at this key?"""
        before = query.at - key.at
        return (query.row == key.row) & ((before == 0) | (before > 1))


@dataclass(frozen=True)
class FlatteredRule:
    """A window that the fused kernel's own triangle is taken for."""

    window: int = 3

    def __call__(self, query: Places, key: Places) -> Tensor:
        """May this query look at this key?"""
        return sight.Leftward(self.window)(query, key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, sight.Leftward | FlatteredRule)

    def __hash__(self) -> int:
        return hash(self.window)


def peek(model: Transformer) -> None:
    """The last layer sees one token ahead."""
    model.decoder.layers[-1].attention.rule = PeekingRule()


def share_statistics(model: Transformer) -> None:
    """The first layer centres its states over the whole batch, as a batch norm does: every row moves every other."""
    layer = model.decoder.layers[0]
    sound = layer.forward

    def centre(states: Tensor, own: Own, across: Across | None, cache: Cache | None) -> Tensor:
        return sound(states - 0.1 * states.mean(dim=0), own, across, cache)

    layer.forward = centre


def hide_the_last_word(model: Transformer) -> None:
    """No layer sees the token just before."""
    for layer in model.decoder.layers:
        layer.attention.rule = BlindRule()


def flatter_the_kernel(model: Transformer) -> None:
    """The fused path forgets the window."""
    for layer in model.decoder.layers:
        layer.attention.rule = FlatteredRule()


def whisper(model: Transformer) -> None:
    """The next token is added with a weight too small to change a bit of the sum, yet training would find it."""
    layer = model.decoder.layers[0]
    sound = layer.forward

    def leak(states: Tensor, own: Own, across: Across | None, cache: Cache | None) -> Tensor:
        return sound(states + 1e-40 * states.roll(-1, 0), own, across, cache)

    layer.forward = leak


def misplace_steps(model: Transformer) -> None:
    """A cached call takes every token to stand one place further right."""
    sound = model.embedding.forward
    whole = model.forward

    def late(batch: Packed) -> Tensor:
        return sound(replace(batch, at=batch.at + 1))

    def forward(target: Packed, source: Packed | None = None, cache: Cache | None = None) -> Tensor:
        model.embedding.forward = sound if cache is None else late
        return whole(target, source, cache)

    model.forward = forward


def lose_values(model: Transformer) -> None:
    """A reorder moves keys and leaves values where they were: beams go on from somebody else's words."""
    whole = model.forward

    def reorder(cache: Cache, parents: Tensor) -> None:
        for ring in cache.rings:
            ring.at.copy_(ring.at[parents])
        for store in cache.own:
            store[0] = store[0][parents]

    def forward(target: Packed, source: Packed | None = None, cache: Cache | None = None) -> Tensor:
        if cache is not None:
            cache.reorder = lambda parents: reorder(cache, parents)
        return whole(target, source, cache)

    model.forward = forward


def unmask_in_training(model: Transformer) -> None:
    """While it trains the decoder sees its whole row, as when a mask is forgotten in one of two code paths."""
    for layer in model.decoder.layers:
        if model.training:
            layer.attention.rule = sight.WholeRow()


def shift_twice(rows: list[np.ndarray]) -> Lesson:
    """Labels moved once by the data and once again by the loss."""
    inputs = pack([row[:-1] for row in rows])
    labels = np.concatenate([np.append(row[2:], row[-1]) for row in rows])
    return Lesson(inputs, torch.from_numpy(labels))


def shift_never(rows: list[np.ndarray]) -> Lesson:
    """Every token is asked for while it is read."""
    inputs = pack([row[:-1] for row in rows])
    return Lesson(inputs, inputs.ids)
