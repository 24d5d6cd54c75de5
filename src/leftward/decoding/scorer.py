"""What gives the scores of the next token: one model, or several whose shares are averaged.

S slots, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leftward.errors import SettingsError
from leftward.model.cache import Cache
from leftward.model.transformer import Transformer
from leftward.packed import Packed


class Scorer:
    """Models and what they remember of the rows being written."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        if len({(model.settings.vocabulary, model.settings.has_encoder) for model in models}) != 1:
            raise SettingsError(
                "these models have different vocabularies or are of different kinds",
                where="an ensemble",
                hint="average models that were trained with one tokenizer",
            )
        self._models = list(models)
        self._caches: list[Cache] = []

    @property
    def device(self) -> torch.device:
        """Where the models compute."""
        return self._models[0].output.weight.device

    @property
    def has_encoder(self) -> bool:
        """Whether the models read a source."""
        return self._models[0].settings.has_encoder

    @property
    def context(self) -> int:
        """The longest row that all of them can read."""
        return min(model.settings.context for model in self._models)

    def allocate(self, *, slots: int, capacity: int, sources: int, source_capacity: int, chunk: int) -> None:
        """Make room; what was remembered before is forgotten."""
        self._caches = [
            model.allocate(
                slots=slots, capacity=capacity, sources=sources, source_capacity=source_capacity, chunk=chunk
            )
            for model in self._models
        ]

    def read(self, sources: Packed) -> None:
        """Read sources, each into the place of its row number."""
        for model, cache in zip(self._models, self._caches, strict=True):
            model.read(sources, cache)

    def prefill(self, prompts: Packed) -> None:
        """Read the beginnings of rows, of which no score is wanted."""
        for model, cache in zip(self._models, self._caches, strict=True):
            model(prompts, cache=cache)

    def advance(self, batch: Packed) -> Tensor:
        """Read one token in every slot; scores (S, V) of the next."""
        scores = [
            model.scores(model(batch, cache=cache)) for model, cache in zip(self._models, self._caches, strict=True)
        ]
        if len(scores) == 1:
            return scores[0]
        shares = torch.stack([each.double().log_softmax(dim=-1) for each in scores])
        return shares.logsumexp(dim=0) - math.log(len(scores))

    def reorder(self, parents: Tensor) -> None:
        """Let slot i go on from slot parents[i]."""
        for cache in self._caches:
            cache.reorder(parents)

    def narrow(self, slots: Tensor, sources: Tensor) -> None:
        """Keep only these slots and sources, in this order."""
        self._caches = [cache.narrow(slots, sources) for cache in self._caches]
