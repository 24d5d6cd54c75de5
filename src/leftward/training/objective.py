"""What a model is trained on: to predict every token of a row from what stands to its left.

N predictions, V words in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from leftward.model.linear import linear
from leftward.model.transformer import Output, Transformer
from leftward.packed import Packed, pack

# Predictions scored at a time; see bench/loss_chunks. More of them no longer fit the processor's cache.
CHUNK = 256


@dataclass(frozen=True, eq=False)
class Lesson:
    """One batch to learn from: what is read, what is right, and the source where there is one."""

    inputs: Packed
    labels: Tensor  # (N,)
    source: Packed | None = None

    @property
    def count(self) -> int:
        """How many predictions count."""
        return len(self.labels) if self.inputs.counts is None else int(self.inputs.counts.sum())

    def to(self, device: torch.device | str) -> Lesson:
        """The same lesson on another device."""
        source = None if self.source is None else self.source.to(device)
        return Lesson(self.inputs.to(device), self.labels.to(device), source)


def shift(
    rows: Sequence[Sequence[int] | np.ndarray],
    sources: Sequence[Sequence[int] | np.ndarray] | None = None,
    *,
    uncounted: Sequence[int] | None = None,
) -> Lesson:
    """Make a lesson of whole rows: the model reads all but the last token, and must say all but the first.

    This is the only place where labels are made. Without it a model would be asked for the token it was just
    given, and no mask would keep it from copying.

    >>> lesson = shift([[1, 5, 6, 2], [1, 7, 2]])
    >>> lesson.inputs.ids.tolist(), lesson.labels.tolist()
    ([1, 5, 6, 1, 7], [5, 6, 2, 7, 2])
    """
    inputs = pack([row[:-1] for row in rows], uncounted=uncounted)
    labels = np.concatenate([np.asarray(row[1:], dtype=np.int64) for row in rows])
    return Lesson(inputs, torch.from_numpy(labels), None if sources is None else pack(sources))


class Loss(NamedTuple):
    """The loss of a batch, summed over the predictions that count, in nats."""

    total: Tensor  # what is minimised, label smoothing included; carries the gradient
    plain: Tensor  # without smoothing
    count: int


def loss_of(model: Transformer, lesson: Lesson, *, smoothing: float = 0.0) -> Loss:
    """The loss of a model on a lesson, all positions at once.

    >>> from leftward.settings import Model, Stack
    >>> model = Transformer(Model(vocabulary=9, width=8, decoder=Stack(layers=1, heads=2, feed_forward=16)))
    >>> loss_of(model, shift([[1, 5, 2], [1, 2]])).count
    3
    """
    states = model(lesson.inputs, lesson.source)
    labels, counts = lesson.labels, lesson.inputs.counts
    if counts is not None:
        states, labels = states[counts], labels[counts]
    total, plain = project_and_score(states, labels, model.output, smoothing=smoothing)
    return Loss(total, plain, len(labels))


def project_and_score(
    states: Tensor, labels: Tensor, output: Output, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Output projection and loss in one, a chunk of rows at a time: the N x V scores never stand in memory.

    Returns the sum to be minimised and the plain sum of negative log-probabilities. With smoothing s the
    right word's share is 1 - s, and s is spread over all words alike.
    """
    if output.scale != 1:
        states = states * output.scale
    # Inside an autograd function gradients are always off, whatever they are outside.
    wants = torch.is_grad_enabled()
    return _ProjectAndScore.apply(states, output.weight, output.bias, labels, smoothing, wants)


class _ProjectAndScore(torch.autograd.Function):
    """Gradients are made on the way forward, while a chunk's probabilities are at hand."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, wants: bool
    ) -> tuple[Tensor, Tensor]:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        wants = wants and any(ctx.needs_input_grad)
        words = weight.to(dtype)
        mean_word, even = weight.to(exact).mean(dim=0), smoothing / len(weight)
        mean_bias = 0.0 if bias is None else bias.to(exact).mean()
        to_states = torch.empty_like(states, dtype=exact) if wants else None
        to_weight = torch.zeros_like(weight, dtype=exact) if wants else None
        to_bias = torch.zeros_like(bias, dtype=exact) if wants and bias is not None else None
        total, plain = states.new_zeros((), dtype=torch.float64), states.new_zeros((), dtype=torch.float64)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(states), CHUNK):
                chunk, right = states[start : start + CHUNK], labels[start : start + CHUNK]
                rows = chunk.to(dtype)
                scores = linear(rows, words, None if bias is None else bias.to(dtype)).to(exact)
                right = right[:, None]
                right_score = scores.gather(1, right)
                log_shares = scores.log_softmax(dim=1)
                right_log = log_shares.gather(1, right)
                plain -= right_log.sum(dtype=torch.float64)
                if smoothing:
                    # The mean of all scores is the score of the mean word: no pass over the vocabulary.
                    mean_score = chunk.to(exact) @ mean_word + mean_bias
                    mean_log = mean_score - (right_score - right_log)[:, 0]
                    total -= smoothing * mean_log.sum(dtype=torch.float64)
                if to_states is None or to_weight is None:
                    continue
                slope = log_shares.exp_()
                slope.scatter_add_(1, right, slope.new_full((len(right), 1), smoothing - 1))
                if even:
                    slope -= even
                if to_bias is not None:
                    to_bias += slope.sum(dim=0)
                slope = slope.to(dtype)
                to_states[start : start + len(chunk)] = slope @ words
                if dtype == exact:
                    to_weight.addmm_(slope.t(), rows)
                else:
                    to_weight += slope.t() @ rows
        total += (1 - smoothing) * plain
        if wants:
            ctx.save_for_backward(to_states, to_weight, to_bias)
            ctx.dtypes = states.dtype, weight.dtype
        total, plain = total.to(exact), plain.to(exact)
        ctx.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _plain: Tensor) -> tuple[Tensor | None, ...]:
        to_states, to_weight, to_bias = ctx.saved_tensors
        of_states, of_weight = ctx.dtypes
        return (
            (to_states * gradient).to(of_states),
            (to_weight * gradient).to(of_weight),
            None if to_bias is None else to_bias * gradient,
            None,
            None,
            None,
        )
