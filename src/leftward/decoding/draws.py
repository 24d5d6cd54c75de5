"""Random numbers that are functions of who asks: a seed, a row, a sample and a position."""

from __future__ import annotations

import torch
from torch import Tensor

# Odd numbers with well mixed bits: the fractional parts of the golden ratio and of roots, as signed 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def draw(seed: int, row: Tensor, sample: Tensor, position: Tensor) -> Tensor:
    """A number from 0 up to 1 for each row, sample and position; integers all.

    >>> row, zero = torch.arange(3), torch.zeros(3, dtype=torch.long)
    >>> together, alone = draw(1, row, zero, zero), draw(1, row[2:], zero[2:], zero[2:])
    >>> bool(together[2] == alone[0])
    True
    """
    mixed = _mix(torch.full_like(row, seed))
    for part in (row, sample, position):
        mixed = _mix(mixed + (part + 1) * _STEP)
    return _shift(mixed, 11).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    """Let every bit depend on every other; multiplication wraps around."""
    bits = (bits ^ _shift(bits, 30)) * _FIRST
    bits = (bits ^ _shift(bits, 27)) * _SECOND
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, count: int) -> Tensor:
    """To the right, with zeros coming in; torch repeats the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
