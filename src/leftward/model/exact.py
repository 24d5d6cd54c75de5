"""Exact arithmetic: the same bits for a row, whatever else is in the batch.

Matrix kernels take other paths for few or odd numbers of rows, and sum in another order there. While
`exact()` is in force every linear map sees its rows padded to a multiple of 8, attention its queries to a
multiple of 8 and its keys to a multiple of 64, and only rows of like padded size share a rectangle. It costs
time; without it results of different batches agree to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ROW_MULTIPLE = 8
KEY_MULTIPLE = 64

_in_force: ContextVar[bool] = ContextVar("exact", default=False)


def is_exact() -> bool:
    """Whether exact arithmetic is in force.

    >>> with exact():
    ...     is_exact()
    True
    """
    return _in_force.get()


@contextmanager
def exact() -> Iterator[None]:
    """Compute in a way that does not depend on the rest of the batch, inside this block."""
    token = _in_force.set(True)
    try:
        yield
    finally:
        _in_force.reset(token)


def round_up(number: int, multiple: int) -> int:
    """The next multiple, or the number itself where it is one.

    >>> round_up(9, 8), round_up(16, 8)
    (16, 16)
    """
    return -(-number // multiple) * multiple
