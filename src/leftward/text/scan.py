"""One look at a text file from end to end: it finds the lines, proves that they are UTF-8, and hashes them.

Nothing is held but one block of the file and the place where each line starts.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leftward.errors import TextError

LONGEST_LINE = 1_000_000
_BLOCK = 1 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}


def map_file(path: Path) -> mmap.mmap:
    """The bytes of a file, left to the operating system to hold."""
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


def scan(path: Path, data: mmap.mmap) -> tuple[NDArray[np.int64], str]:
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
        hint = f"convert it: iconv -f UTF-16{order} -t UTF-8 {path} > new.txt"
        raise TextError("the file is UTF-16, not UTF-8", where=str(path), hint=hint)
    if many:
        raise _not_text(path, head)


def _bad_byte(path: Path, data: mmap.mmap, at: int, line: int, before: int) -> TextError:
    head = data[:_BLOCK]
    if b"\0" in head or head.startswith(tuple(_PACKED)):
        return _not_text(path, head)
    return TextError(
        f"the byte 0x{data[at]:02X} is not UTF-8",
        where=f"{path}:{line + 1}, byte {before + 1}",
        hint="mend the line, or convert the file from the encoding it is in: iconv -f WINDOWS-1252 -t UTF-8",
    )


def _not_text(path: Path, head: bytes) -> TextError:
    for start, name in _PACKED.items():
        if head.startswith(start):
            return TextError(f"the file is packed with {name}", where=str(path), hint="unpack it first")
    return TextError("the file is binary, not text", where=str(path), hint="give a plain text file in UTF-8")
