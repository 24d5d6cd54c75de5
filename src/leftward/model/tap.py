"""Places where a running model can be listened to, from outside.

A tap changes nothing and, while nobody listens, costs one test of an empty list. `explain` and `auditing`
listen; the model never knows who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from leftward.packed import Places


class Attended(NamedTuple):
    """What one attention did: of every rectangle its places, who saw whom, and what came of it.

    Queries (b, Hk, G, Q, D), keys and values (b, Hk, K, D), matrix (b, 1, 1, Q, K) of 0 and -inf, bias
    (b or 1, Hk, G, Q, K), output (b, Hk, G, Q, D), weights (b, Hk, G, Q, K) where the plain path ran.
    """

    path: str
    places: tuple[Places, Places]
    queries: Tensor
    keys: Tensor
    values: Tensor
    matrix: Tensor
    bias: Tensor | None
    scale: float
    output: Tensor
    weights: Tensor | None


class Tap(nn.Module):
    """One such place. It is a module only so that it has a name in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[Any], None]] = []

    def tell(self, value: Any) -> None:
        """Hand a value to everybody who listens."""
        for listener in self.listeners:
            listener(value)


@contextmanager
def listen(model: nn.Module, hear: Callable[[str, Any], None]) -> Iterator[None]:
    """Call `hear(name, value)` for whatever the taps of a model tell, inside this block.

    >>> class Layer(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.tap = Tap()
    >>> layer, heard = Layer(), []
    >>> with listen(layer, lambda name, value: heard.append((name, value))):
    ...     layer.tap.tell(5)
    >>> heard
    [('tap', 5)]
    """

    def named(name: str) -> Callable[[Any], None]:
        return lambda value: hear(name, value)

    added = [(tap, named(name)) for name, tap in model.named_modules() if isinstance(tap, Tap)]
    for tap, listener in added:
        tap.listeners.append(listener)
    try:
        yield
    finally:
        for tap, listener in added:
            tap.listeners.remove(listener)
