"""Functions from scores to scores, on the last axis: what is left out becomes -inf."""

from __future__ import annotations

import torch
from torch import Tensor


def temper(scores: Tensor, temperature: float) -> Tensor:
    """Flatter above 1, sharper below; 1 changes nothing.

    >>> temper(torch.tensor([2.0, 4.0]), 2.0).tolist()
    [-1.0, 0.0]
    """
    if temperature == 1:
        return scores
    # Measured from the likeliest, and with room for very small numbers: what is unlike stays unlike.
    scores = scores.double()
    return (scores - scores.amax(dim=-1, keepdim=True)) / temperature


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """The k largest, the earlier one where two are alike; 0 keeps all.

    >>> keep_top_k(torch.tensor([1.0, 3.0, 2.0]), 2).tolist()
    [-inf, 3.0, 2.0]
    """
    if k == 0 or k >= scores.shape[-1]:
        return scores
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return scores.scatter(-1, order[..., k:], -torch.inf)


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """The likeliest words that together have at least the share p, and no more than it takes; 1 keeps all.

    >>> keep_top_p(torch.tensor([0.5, 0.3, 0.2]).log(), 0.7).exp()
    tensor([0.5000, 0.3000, 0.0000])
    """
    if p >= 1:
        return scores
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    reached = ordered.double().softmax(dim=-1).cumsum(dim=-1)
    # A word stays as long as those before it do not reach p; the first one always does.
    beyond = torch.nn.functional.pad(reached[..., :-1] >= p, (1, 0))
    return scores.scatter(-1, order, ordered.masked_fill(beyond, -torch.inf))
