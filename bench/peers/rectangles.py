"""Rows of uneven length as the padded tensors that the peers expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.pieces import END, PADDING, START, Batch, Row


@dataclass(frozen=True)
class Rectangles:
    """One batch: what the encoder reads, what the decoder reads, and what it must say."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor


def pad_batch(batch: Batch) -> Rectangles:
    """Place start and end, and pad."""
    return Rectangles(
        pad_rows(batch.sources, after=(END,)),
        pad_rows(batch.targets, before=(START,)),
        pad_rows(batch.targets, after=(END,)),
    )


def pad_rows(rows: Sequence[Row], *, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Tensor:
    """The rows, each between `before` and `after`, padded on the right."""
    whole = [np.concatenate([before, row, after]) for row in rows]
    cells = np.full((len(whole), max(map(len, whole))), PADDING, np.int64)
    for cell, row in zip(cells, whole, strict=True):
        cell[: len(row)] = row
    return torch.from_numpy(cells)
