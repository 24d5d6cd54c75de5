"""How the numbers of one token divide into heads."""

from __future__ import annotations

from typing import NamedTuple

from leftward.settings import Model, Stack


class Heads(NamedTuple):
    """The number of query heads, the number of key heads they share, and the width of each."""

    query: int
    key: int
    size: int


def heads_of(settings: Model, stack: Stack) -> Heads:
    """The heads of a stack.

    >>> heads_of(Model(vocabulary=9, width=8, decoder=Stack(heads=4, key_heads=2)), Stack(heads=4, key_heads=2))
    Heads(query=4, key=2, size=2)
    """
    return Heads(stack.heads, stack.key_heads or stack.heads, settings.head_size(stack))
