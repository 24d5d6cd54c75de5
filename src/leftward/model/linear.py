"""A linear map that can be asked for the same bits whatever else is in the batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from leftward.model.exact import ROW_MULTIPLE, is_exact


class Linear(nn.Linear):
    """States times a weight, plus a bias."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        """Uniform weights that neither swell nor shrink what passes, and a bias of zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """States (N, inputs) to (N, outputs)."""
        return linear(input, self.weight, self.bias)


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """States (N, inputs) times weight (outputs, inputs), plus bias.

    >>> import torch
    >>> linear(torch.ones(1, 2), torch.eye(2), torch.ones(2)).tolist()
    [[2.0, 2.0]]
    """
    if is_exact() and len(states) % ROW_MULTIPLE:
        padded = functional.pad(states, (0, 0, 0, -len(states) % ROW_MULTIPLE))
        return functional.linear(padded, weight, bias)[: len(states)]
    return functional.linear(states, weight, bias)
