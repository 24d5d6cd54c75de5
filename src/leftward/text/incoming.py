"""Lines as they come in, from a file or from whoever writes to standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from leftward.errors import TextError
from leftward.text.corpus import Lines
from leftward.text.scan import LONGEST_LINE

# Lines handed on together: enough to sort by length, few enough to hold.
WINDOW = 4096
_READ = 1 << 20


def portions(name: str) -> Iterator[list[str]]:
    """The lines of a file, or for "-" of standard input, a window at a time.

    What waits on standard input is handed on before more is read: whoever asks line by line is answered line by line.
    """
    return _from_input(sys.stdin.fileno()) if name == "-" else _from_file(Lines(name))


def read_all() -> str:
    """All of standard input as one text, without its last line end."""
    return "\n".join(line for lines in _from_input(sys.stdin.fileno()) for line in lines)


def _from_file(lines: Lines) -> Iterator[list[str]]:
    for first in range(0, len(lines), WINDOW):
        yield [lines[number] for number in range(first, min(first + WINDOW, len(lines)))]


def _from_input(descriptor: int) -> Iterator[list[str]]:
    rest, count = b"", 0
    while block := os.read(descriptor, _READ):
        *whole, rest = (rest + block).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise _refused(count + len(whole), f"a line of more than {LONGEST_LINE:,} bytes", "cut it into sentences")
        for first in range(0, len(whole), WINDOW):
            some = whole[first : first + WINDOW]
            yield [_decode(line, count + number) for number, line in enumerate(some)]
            count += len(some)
    if rest:
        yield [_decode(rest, count)]


def _decode(line: bytes, number: int) -> str:
    line = line.removesuffix(b"\r")
    if number == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    if len(line) > LONGEST_LINE:
        raise _refused(number, f"a line of {len(line):,} bytes", "cut it into sentences")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(number, f"byte {error.start + 1} is not UTF-8", "convert the text to UTF-8") from None


def _refused(number: int, what: str, hint: str) -> TextError:
    return TextError(what, where=f"standard input, line {number + 1}", hint=hint)
