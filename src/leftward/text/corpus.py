"""Text files, had by line number.

A line ends at \\n or \\r\\n and nowhere else: a lone carriage return or U+2028 that ended a line on one side
only would shift every later pair. A file is read once from end to end, which finds its lines, proves it is
UTF-8 and hashes it; after that only the place where each line starts is kept, and the operating system keeps
the bytes.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leftward.errors import TextError

LONGEST_LINE = 1_000_000
_BLOCK = 1 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}


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
        self._bytes = _open(self.path)
        self.size = len(self._bytes)
        self._starts, self.sha256 = _scan(self.path, self._bytes)

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
        if (
            self._bytes.size() != self.size
        ):  # a file cut short under the map would end the process at the next read
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
            raise TextError(
                "the file has blank lines only", where=str(lines.path), hint="give a file with text in it"
            )

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
    # A few lines lost here and there shift one by one; of many, one block is the cheap story and a likely one.
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


def _open(path: Path) -> mmap.mmap:
    try:
        if path.exists() and not path.is_file():
            what = "this is not a file"
            raise TextError(what, where=str(path), hint="give a plain text file, not a folder or a pipe")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # there is nothing to map
        raise TextError("the file is empty", where=str(path), hint="give a file with text in it") from None
    except FileNotFoundError:
        beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
        raise TextError("there is no such file", where=str(path), hint=hint) from None
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}"
        raise TextError(what, where=str(path), hint="check its name and its permissions") from None


def _scan(path: Path, data: mmap.mmap) -> tuple[NDArray[np.int64], str]:
    """Where each line starts (and where the last one ends), and the SHA-256 of the file."""
    _refuse_other_encodings(path, data[:_BLOCK])
    first = len(codecs.BOM_UTF8) if data[:3] == codecs.BOM_UTF8 else 0
    if len(data) == first:
        raise TextError("the file is empty", where=str(path), hint="give a file with text in it")
    digest = hashlib.sha256(data[:first])
    decoder = codecs.getincrementaldecoder("utf-8")()
    found = [np.array([first])]
    done, start = 0, first  # lines that ended before this block, and where the line in hand started
    for begin in range(first, len(data), _BLOCK):
        block = data[begin : begin + _BLOCK]
        digest.update(block)
        starts = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + begin + 1
        edges = np.concatenate([[start], starts, [begin + len(block)]])
        held = len(decoder.getstate()[0])  # bytes of a character that began in the block before
        try:
            decoder.decode(block, final=begin + len(block) == len(data))
        except UnicodeDecodeError as error:
            at = begin - held + error.start
            line = int(np.searchsorted(edges[1:-1], at, side="right"))
            raise _bad_byte(path, data, at, done + line, at - int(edges[line])) from None
        long = np.flatnonzero(np.diff(edges) > LONGEST_LINE)
        if long.size:
            raise TextError(
                f"a line is longer than {LONGEST_LINE:,} bytes, its end included",
                where=f"{path}:{done + long[0] + 1}",
                hint="break it into several lines, or take it out",
            )
        found.append(starts)
        done, start = done + len(starts), int(edges[-2])
    if start < len(data):  # the last line has no end of its own
        found.append(np.array([len(data)]))
    return np.concatenate(found), digest.hexdigest()


def _refuse_other_encodings(path: Path, head: bytes) -> None:
    zeros = np.flatnonzero(np.frombuffer(head, np.uint8) == 0)
    odd = np.count_nonzero(zeros % 2)
    many = len(zeros) * 50 > len(head)  # UTF-16 has a zero in at least every blank and line end
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if wide or (many and max(odd, len(zeros) - odd) >= 0.9 * len(zeros)):
        order = "" if wide else "LE" if odd else "BE"
        raise TextError(
            "the file is UTF-16, not UTF-8",
            where=str(path),
            hint=f"convert it: iconv -f UTF-16{order} -t UTF-8 {path} > new.txt",
        )
    if many:
        raise TextError(
            "the file is binary, not text", where=str(path), hint="give a plain text file in UTF-8"
        )


def _bad_byte(path: Path, data: mmap.mmap, at: int, line: int, before: int) -> TextError:
    head = data[:_BLOCK]
    packed = next((name for start, name in _PACKED.items() if head.startswith(start)), None)
    if packed:
        return TextError(f"the file is packed with {packed}", where=str(path), hint="unpack it first")
    if b"\0" in head:
        return TextError(
            "the file is binary, not text", where=str(path), hint="give a plain text file in UTF-8"
        )
    return TextError(
        f"the byte 0x{data[at]:02X} is not UTF-8",
        where=f"{path}:{line + 1}, byte {before + 1}",
        hint="mend the line, or convert the file from the encoding it is in: iconv -f WINDOWS-1252 -t UTF-8",
    )
