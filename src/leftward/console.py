"""What a person sees on the error stream: notes, errors, and one line that moves while work goes on.

Results go to standard output and never pass here. Nothing but plain text is written to what is no terminal.
"""

from __future__ import annotations

import json
import os
import time
from typing import TextIO

from leftward.errors import LeftwardError

EVERY_SECONDS = 10.0  # between lines where nothing can be overwritten
REDRAW_SECONDS = 0.1


class Console:
    """Writes to one stream.

    >>> import io
    >>> stream = io.StringIO()
    >>> Console(stream).note("saved")
    >>> stream.getvalue()
    'saved\\n'
    """

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._line = ""
        self._last = 0.0

    def note(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(text + "\n")

    def progress(self, text: str, *, is_last: bool = False) -> None:
        """A line that the next one replaces on a terminal; elsewhere one now and then."""
        now = time.monotonic()
        if not is_last and now - self._last < (REDRAW_SECONDS if self._is_terminal else EVERY_SECONDS):
            return
        self._last = now
        if not self._is_terminal:
            self._write(text + "\n")
            return
        width = self._width()
        shown = text if len(text) < width else text[: max(width - 2, 1)] + "…"
        self._write("\r" + shown + " " * max(0, len(self._line) - len(shown)))
        self._line = shown
        if is_last:
            self._write("\n")
            self._line = ""

    def error(self, error: LeftwardError) -> None:
        """What is wrong, where, and what to do."""
        self._clear()
        if self._as_json:
            parts = {"code": error.code, "message": error.what, "where": error.where, "hint": error.hint}
            self._write(json.dumps({"error": parts}, ensure_ascii=False) + "\n")
        else:
            self._write(f"leftward: {error}\n")

    def _clear(self) -> None:
        if self._line:
            self._write("\n")
            self._line = ""

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(5), duration(75), duration(3700)
    ('5 s', '1 min 15 s', '1 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
