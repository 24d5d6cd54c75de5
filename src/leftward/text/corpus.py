"""Text files, had by line number.

A line ends at \\n or \\r\\n and nowhere else: a lone carriage return or U+2028 that ended a line on one side
only would shift every later pair. A file is read once from end to end, which finds its lines, proves it is
UTF-8 and hashes it; after that only the place where each line starts is kept, and the operating system keeps
the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leftward.errors import TextError
from leftward.text.scan import map_file, scan


class Lines:
    """The lines of a UTF-8 file, had by number, without their line ends.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.txt"
    >>> _ = path.write_bytes("one\\r\\ntwo\\u2028still two".encode())
    >>> list(Lines(path))
    ['one', 'two\\u2028still two']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._bytes = map_file(self.path)
        self.size = len(self._bytes)
        self._starts, self.sha256 = scan(self.path, self._bytes)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.text(number, number + 1).removesuffix("\n")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each line takes in the file, its end included."""
        return np.diff(self._starts)

    def text(self, first: int, last: int) -> str:
        """The text from line `first` to just before line `last`, each line ended by \\n."""
        # Reading where a file was cut short under the map would end the process.
        if self._bytes.size() != self.size:
            raise TextError("the file changed while it was in use", where=str(self.path), hint="start again")
        try:
            text = self._bytes[self._starts[first] : self._starts[last]].decode("utf-8")
        except UnicodeDecodeError:
            where = f"{self.path}:{first + 1}"
            raise TextError("the file changed while it was in use", where=where, hint="start again") from None
        return text.replace("\r\n", "\n")


class Documents:
    """The documents of one file: the whole of it, one a line, or one a paragraph between blank lines.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "three.txt"
    >>> _ = path.write_text("Rain.\\nWind.\\n\\nSun.\\n")
    >>> [list(Documents(Lines(path), by)) for by in ("none", "line", "blank")]
    [['Rain.\\nWind.\\n\\nSun.\\n'], ['Rain.', 'Wind.', '', 'Sun.'], ['Rain.\\nWind.', 'Sun.']]
    """

    def __init__(self, lines: Lines, by: Literal["none", "line", "blank"]) -> None:
        self.lines = lines
        self.by = by
        count = len(lines)
        if by == "none":
            self._spans = np.array([[0, count]])
        elif by == "line":
            self._spans = np.stack([np.arange(count), np.arange(1, count + 1)], axis=1)
        else:
            written = np.fromiter((bool(line.strip()) for line in lines), bool, count)
            self._spans = np.flatnonzero(np.diff(written, prepend=False, append=False)).reshape(-1, 2)
        if not len(self._spans):
            what = "the file has blank lines only"
            raise TextError(what, where=str(lines.path), hint="give a file with text in it")

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(number)
        first, last = self._spans[number]
        text = self.lines.text(first, last)
        return text if self.by == "none" else text.removesuffix("\n")


def require_pairs(source: Lines, target: Lines) -> None:
    """Refuse two files whose lines cannot be pairs because one file has more of them.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.en").write_text("One.\\nA much longer line.\\nOne.\\n")
    >>> _ = (folder / "a.de").write_text("Eins.\\nEins.\\n")
    >>> require_pairs(Lines(folder / "a.en"), Lines(folder / "a.de"))
    Traceback (most recent call last):
    leftward.errors.TextError: the files do not match line by line: a.en has 3 lines, a.de has 2
    ...
    """
    if len(source) == len(target):
        return
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    near = _first_doubt(np.log(longer.lengths), np.log(shorter.lengths))
    alike = source.path.name == target.path.name
    names = [str(lines.path if alike else lines.path.name) for lines in (source, target)]
    counts = f"{names[0]} has {len(source):,} lines, {names[1]} has {len(target):,}"
    raise TextError(
        f"the files do not match line by line: {counts}",
        where=f"near line {near:,} of {longer.path}",
        hint=f"compare the files there: {longer.path} has a line too many, or {shorter.path} lacks one",
    )


def _first_doubt(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> int:
    """The line (from 1) where two files part: where the best path from "not shifted" to "all shifted" begins.

    Lines that belong together are about equally long. `cost[k]` is the best price of the first k lines of the
    shorter file on a path that ends at the shift in hand, `left[k]` where that path left shift 0.
    """
    missing, count = len(longer) - len(shorter), len(shorter)
    # A few lines lost here and there shift one by one; one block of many is cheap to find and likely.
    shifts = range(1, missing + 1) if missing <= 8 else (missing,)

    def prices(shift: int) -> NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(np.abs(longer[shift : shift + count] - shorter))])

    cost = prices(0)
    left = np.arange(count + 1)
    for shift in shifts:
        price = prices(shift)
        best = np.minimum.accumulate(cost - price)
        moved = np.maximum.accumulate(np.where(cost - price == best, np.arange(count + 1), 0))
        cost, left = price + best, left[moved]
    return int(left[-1]) + 1
