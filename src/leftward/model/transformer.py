"""The models: a decoder, with an encoder in front of it or without.

N target tokens and M source tokens, end to end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leftward.errors import SettingsError
from leftward.model.attention import biases_of
from leftward.model.cache import Cache
from leftward.model.dropout import drop
from leftward.model.layers import Across, DecoderLayer, EncoderLayer, Own, in_training_precision, make_norm
from leftward.model.linear import linear
from leftward.model.positions import Alibi, Learned, Relative, Rotary, Sinusoidal
from leftward.model.rectangles import Meeting
from leftward.model.tap import Tap
from leftward.packed import Packed
from leftward.settings import Model, Stack


class Embedding(nn.Module):
    """Tokens become vectors that also say where they stand."""

    def __init__(self, settings: Model, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.scale = settings.embedding_scale or math.sqrt(settings.width)
        self.offset = settings.position_offset
        self.context = settings.context
        self.dropout = settings.dropout
        self.positions: nn.Module | None = None
        if settings.positions == "sinusoidal":
            self.positions = Sinusoidal(settings)
        elif settings.positions == "learned":
            self.positions = Learned(settings)
        self.norm = make_norm(settings) if settings.embedding_norm else None
        self.tap = Tap()

    def forward(self, batch: Packed) -> Tensor:
        """(N, width)."""
        if batch.furthest >= self.context:
            raise SettingsError(
                f"a row of {batch.furthest + 1} tokens is longer than the model's context of {self.context}",
                where="context",
                hint="shorten the row, or train a model with a longer context",
            )
        states = self.words(batch.ids) * self.scale
        if self.positions is not None:
            states = states + self.positions(batch.at + self.offset if self.offset else batch.at)
        if self.norm is not None:
            states = self.norm(states)
        states = drop(states, self.dropout) if self.training else states
        if self.tap.listeners:
            self.tap.tell(states)
        return states


class Encoder(nn.Module):
    """Layers that see their whole row."""

    layers: list[EncoderLayer]

    def __init__(self, settings: Model, stack: Stack) -> None:
        super().__init__()
        self.layers = nn.ModuleList(  # type: ignore[assignment]
            EncoderLayer(settings, stack, layer) for layer in range(stack.layers)
        )
        self.final_norm = make_norm(settings) if settings.has_final_norm else None
        self.rotary = Rotary(settings, stack) if settings.positions == "rotary" else None
        self.bias = _score_bias(settings, stack, both_ways=True)

    def forward(self, states: Tensor, batch: Packed) -> Tensor:
        """States (M, width) to states (M, width)."""
        meeting, dtype = Meeting(batch, batch), in_training_precision(states)
        angles = None if self.rotary is None else self.rotary.angles(batch.at, dtype)
        own = Own(meeting, angles, biases_of(self.bias, meeting, dtype))
        for layer in self.layers:
            states = layer(states, own)
        return states if self.final_norm is None else self.final_norm(states)


class Decoder(nn.Module):
    """Layers that look left, and at the source where there is one."""

    layers: list[DecoderLayer]

    def __init__(self, settings: Model, stack: Stack) -> None:
        super().__init__()
        self.layers = nn.ModuleList(  # type: ignore[assignment]
            DecoderLayer(settings, stack, layer) for layer in range(stack.layers)
        )
        self.final_norm = make_norm(settings) if settings.has_final_norm else None
        self.rotary = Rotary(settings, stack) if settings.positions == "rotary" else None
        self.bias = _score_bias(settings, stack, both_ways=False)

    def forward(self, states: Tensor, batch: Packed, across: Across | None, cache: Cache | None) -> Tensor:
        """States (N, width) to states (N, width)."""
        dtype = in_training_precision(states)
        meetings = [Meeting(batch, batch)] * len(self.layers) if cache is None else cache.meet(batch)
        angles = None if self.rotary is None else self.rotary.angles(batch.at, dtype)
        # Layers with one window share a meeting, and with it the bias of positions.
        owns = {
            id(meeting): Own(meeting, angles, biases_of(self.bias, meeting, dtype))
            for meeting in {id(meeting): meeting for meeting in meetings}.values()
        }
        for layer, meeting in zip(self.layers, meetings, strict=True):
            states = layer(states, owns[id(meeting)], across, cache)
        return states if self.final_norm is None else self.final_norm(states)


def _score_bias(settings: Model, stack: Stack, *, both_ways: bool) -> Relative | Alibi | None:
    """The part that tells positions by adding to the scores, where the settings want one."""
    if settings.positions == "relative":
        return Relative(settings, stack, both_ways=both_ways)
    return Alibi(stack) if settings.positions == "alibi" else None


class Output(nn.Module):
    """The one projection from states to scores over the vocabulary."""

    def __init__(self, settings: Model, words: nn.Embedding | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(settings.vocabulary, settings.width)) if words is None else words.weight
        if words is None:
            nn.init.normal_(self.weight, std=settings.width**-0.5)
        self.bias = nn.Parameter(torch.zeros(settings.vocabulary)) if settings.output_bias else None
        self.scale = settings.logit_scale

    def forward(self, states: Tensor) -> Tensor:
        """States (N, width) to scores (N, vocabulary)."""
        return linear(states if self.scale == 1 else states * self.scale, self.weight, self.bias)


class Transformer(nn.Module):
    """A decoder-only model, or an encoder-decoder one where the settings have an encoder.

    Training calls it once over whole target rows; writing calls the same `forward` again and again with a
    cache.

    >>> from leftward.packed import pack
    >>> model = Transformer(Model(vocabulary=9, width=8, decoder=Stack(layers=1, heads=2, feed_forward=16)))
    >>> model.scores(model(pack([[1, 2, 3], [4, 5]]))).shape
    torch.Size([5, 9])
    """

    def __init__(self, settings: Model) -> None:
        super().__init__()
        self.settings = settings
        words = _words(settings.vocabulary, settings.width)
        self.embedding = Embedding(settings, words)
        self.decoder = Decoder(settings, settings.decoder)
        self.source_embedding: Embedding | None = None
        self.encoder: Encoder | None = None
        if settings.encoder is not None:
            shared = settings.tie in ("source-target", "all")
            source_words = words if shared else _words(settings.source_size, settings.width)
            self.source_embedding = Embedding(settings, source_words)
            self.encoder = Encoder(settings, settings.encoder)
        self.output = Output(settings, words if settings.tie in ("target-output", "all") else None)

    def encode(self, source: Packed) -> Tensor:
        """The encoder's last states (M, width): one vector for each source token."""
        if self.encoder is None or self.source_embedding is None:
            raise SettingsError(
                "a decoder-only model reads no source",
                where="source",
                hint="give the model its prompt as the target",
            )
        return self.encoder(self.source_embedding(source), source)

    def allocate(
        self, *, slots: int, capacity: int, sources: int = 0, source_capacity: int = 0, chunk: int = 1
    ) -> Cache:
        """A cache for this model, in its own dtype and on its own device; see `Cache.allocate`."""
        weight = self.output.weight
        return Cache.allocate(
            self.settings,
            slots=slots,
            capacity=capacity,
            sources=sources,
            source_capacity=source_capacity,
            chunk=chunk,
            dtype=weight.dtype,
            device=weight.device,
        )

    def read(self, source: Packed, cache: Cache) -> None:
        """Encode sources and keep their keys and values, once for each source and layer."""
        memory = self.encode(source)
        cache.admit(source)
        for layer in self.decoder.layers:
            layer.read(memory, source, cache)

    def forward(self, target: Packed, source: Packed | None = None, cache: Cache | None = None) -> Tensor:
        """States (N, width) of the target tokens; `scores` makes predictions of them.

        With a cache the tokens go on from what it holds, and the source is the one it was given by `read`.
        """
        across = None
        if self.encoder is None and source is not None:
            raise SettingsError(
                "a decoder-only model reads no source",
                where="source",
                hint="give the model its prompt as the target",
            )
        if self.encoder is not None:
            if cache is not None:
                across = Across(cache.meet_sources(target))
            elif source is not None:
                across = Across(Meeting(target, source), self.encode(source))
            else:
                raise SettingsError("this model translates, and has no source to read", hint="give it one")
        return self.decoder(self.embedding(target), target, across, cache)

    def scores(self, states: Tensor) -> Tensor:
        """Scores (N, vocabulary) for the token that comes after each."""
        return self.output(states)


def _words(count: int, width: int) -> nn.Embedding:
    """One vector for each word, as long as scaling by the root of the width makes it one."""
    words = nn.Embedding(count, width)
    nn.init.normal_(words.weight, std=width**-0.5)
    return words
