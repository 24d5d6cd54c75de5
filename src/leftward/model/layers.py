"""The layers: attention, feed-forward, each with its norm and its residual.

N tokens, end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from leftward.model import sight
from leftward.model.attention import CrossAttention, SelfAttention
from leftward.model.cache import Cache, CachedMeeting
from leftward.model.dropout import drop, drop_and_add
from leftward.model.linear import Linear
from leftward.model.rectangles import Meeting
from leftward.model.tap import Tap
from leftward.packed import Packed
from leftward.settings import Model, Stack

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # In place where no gradient asks for what was there before.
    "relu": lambda states: functional.relu(states, inplace=not torch.is_grad_enabled()),
    "gelu": functional.gelu,
    "gelu_tanh": lambda states: functional.gelu(states, approximate="tanh"),
    "gated_silu": functional.silu,
    "gated_gelu": lambda states: functional.gelu(states, approximate="tanh"),
}


class Own(NamedTuple):
    """How the tokens of a batch meet each other, for one layer."""

    meeting: Meeting | CachedMeeting
    angles: tuple[Tensor, Tensor] | None = None
    bias: list[Tensor] | None = None


class Across(NamedTuple):
    """How the tokens being written meet the source: its states (M, width), or none where the cache holds them."""

    meeting: Meeting | CachedMeeting
    memory: Tensor | None = None


def make_norm(settings: Model) -> nn.Module:
    """The kind of norm these settings ask for."""
    if settings.norm == "rms":
        return nn.RMSNorm(settings.width, eps=settings.norm_epsilon)
    return nn.LayerNorm(settings.width, eps=settings.norm_epsilon, bias=settings.norm_bias)


class FeedForward(nn.Module):
    """Each token for itself: widen, bend, narrow. A gated one multiplies what it bends by a second widening."""

    def __init__(self, settings: Model, stack: Stack) -> None:
        super().__init__()
        self.is_gated = settings.activation.startswith("gated")
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = settings.dropout
        inner = stack.feed_forward
        self.widen = Linear(settings.width, inner * (2 if self.is_gated else 1), bias=settings.feed_forward_bias)
        self.narrow = Linear(inner, settings.width, bias=settings.feed_forward_bias)

    def forward(self, states: Tensor) -> Tensor:
        """States (N, width) to states (N, width)."""
        wide = self.widen(states)
        if self.is_gated:
            gate, wide = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * wide
        else:
            wide = self.activation(wide)
        return self.narrow(drop(wide, self.dropout) if self.training else wide)


class Sublayer(nn.Module):
    """A norm and a residual around attention or feed-forward; the first Transformer has the norm after."""

    def __init__(self, settings: Model) -> None:
        super().__init__()
        self.norm = make_norm(settings)
        self.comes_before = settings.norm_place == "before"
        self.dropout = settings.dropout

    def enter(self, states: Tensor) -> Tensor:
        """What the inner part reads."""
        return self.norm(states) if self.comes_before else states

    def leave(self, states: Tensor, inner: Tensor) -> Tensor:
        """The residual, with what the inner part made."""
        together = drop_and_add(states, inner, self.dropout) if self.training else states + inner
        return together if self.comes_before else self.norm(together)


class EncoderLayer(nn.Module):
    """Self-attention over the whole row, then feed-forward."""

    def __init__(self, settings: Model, stack: Stack, layer: int) -> None:
        super().__init__()
        self.attention = SelfAttention(settings, stack, sight.WholeRow(stack.window_of(layer)))
        self.feed_forward = FeedForward(settings, stack)
        self.around_attention = Sublayer(settings)
        self.around_feed_forward = Sublayer(settings)
        self.tap = Tap()

    def forward(self, states: Tensor, own: Own) -> Tensor:
        """States (N, width) to states (N, width)."""
        inner = self.attention(self.around_attention.enter(states), own.meeting, own.angles, own.bias)
        states = self.around_attention.leave(states, inner)
        inner = self.feed_forward(self.around_feed_forward.enter(states))
        states = self.around_feed_forward.leave(states, inner)
        if self.tap.listeners:
            self.tap.tell(states)
        return states


class DecoderLayer(nn.Module):
    """Self-attention that looks left, cross-attention where there is a source, then feed-forward.

    There is no mask to pass and no switch: that it looks left only is what a decoder layer is.
    """

    def __init__(self, settings: Model, stack: Stack, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.attention = SelfAttention(settings, stack, sight.Leftward(stack.window_of(layer)))
        self.around_attention = Sublayer(settings)
        self.across = CrossAttention(settings, stack) if settings.has_encoder else None
        self.around_across = Sublayer(settings) if settings.has_encoder else None
        self.feed_forward = FeedForward(settings, stack)
        self.around_feed_forward = Sublayer(settings)
        self.tap = Tap()

    def read(self, memory: Tensor, source: Packed, cache: Cache) -> None:
        """Keep this layer's keys and values of a source, for the steps to come."""
        if self.across is not None:
            cache.read(self.layer, self.across.project(memory), source)

    def forward(self, states: Tensor, own: Own, across: Across | None, cache: Cache | None) -> Tensor:
        """States (N, width) to states (N, width)."""
        inner = self.attention(
            self.around_attention.enter(states), own.meeting, own.angles, own.bias, cache, self.layer
        )
        states = self.around_attention.leave(states, inner)
        if self.across is not None and self.around_across is not None and across is not None:
            inner = self.across(self.around_across.enter(states), across.meeting, across.memory, cache, self.layer)
            states = self.around_across.leave(states, inner)
        inner = self.feed_forward(self.around_feed_forward.enter(states))
        states = self.around_feed_forward.leave(states, inner)
        if self.tap.listeners:
            self.tap.tell(states)
        return states


def in_training_precision(states: Tensor) -> torch.dtype:
    """The dtype attention computes in: autocast's where it is on."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
