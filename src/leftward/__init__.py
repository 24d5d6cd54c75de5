"""Leftward trains, runs, proves and shows Transformer decoders. A decoder may only look left.

    import leftward

    leftward.train(source="train.en", target="train.de", out="en-de")
    leftward.load("en-de").translate(["How are you?"])

The names listed in `__all__` are promised; everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leftward.api import (
        Decoder,
        Evaluation,
        Scored,
        Text,
        Written,
        audit,
        evaluate,
        generate,
        load,
        score,
        train,
        translate,
    )
    from leftward.errors import LeftwardError
    from leftward.settings import Beam, Greedy, Sample

__all__ = [
    "Beam",
    "Decoder",
    "Evaluation",
    "Greedy",
    "LeftwardError",
    "Sample",
    "Scored",
    "Text",
    "Written",
    "audit",
    "evaluate",
    "generate",
    "load",
    "score",
    "train",
    "translate",
]

_HOMES = {"Beam": "settings", "Greedy": "settings", "Sample": "settings", "LeftwardError": "errors"}


def __getattr__(name: str) -> Any:
    # Names are fetched when they are first used: torch takes most of a second to import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
