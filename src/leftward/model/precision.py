"""Which arithmetic a block of work is done in, and the user's own choice given back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from leftward.settings import Precision


@contextmanager
def computing_in(precision: Precision, device: str = "cpu") -> Iterator[None]:
    """Compute in this precision inside the block.

    `medium` lets torch pick another float32 kernel for matrix products, on some processors one of less
    precision; `bfloat16` runs matrix products in that type, with float32 weights. torch's setting is one for
    the whole process, so it is put back even when the block fails.

    >>> with computing_in("medium"):
    ...     torch.get_float32_matmul_precision()
    'medium'
    >>> torch.get_float32_matmul_precision()
    'highest'
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "medium")
    try:
        # Entering autocast costs more than a small matrix product: only where it changes anything.
        if precision == "bfloat16" or torch.is_autocast_enabled(device):
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
                yield
        else:
            yield
    finally:
        torch.set_float32_matmul_precision(before)
