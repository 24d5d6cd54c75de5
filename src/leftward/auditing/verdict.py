"""What a law found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The worst case a law met, beside what it allows.

    >>> Finding("future", worst=0.0, allowed=0.0).holds
    True
    """

    law: str
    worst: float
    allowed: float
    where: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing was worse than allowed; a value that is no number never holds."""
        return self.worst <= self.allowed


class Worst:
    """Remembers the largest of many differences, and where it was."""

    def __init__(self) -> None:
        self.value = 0.0
        self.where = ""

    def see(self, value: float, where: str) -> None:
        """Take one more difference into account; a NaN stays the worst for good."""
        if not value <= self.value:
            self.value, self.where = value, where

    def finding(self, law: str, allowed: float) -> Finding:
        """The law's finding."""
        return Finding(law, self.value, allowed, self.where)
