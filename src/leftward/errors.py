"""The family of errors.

Every error a user can cause says three things: what is wrong, where it stands, and what to do about it. The
command line prints these as three lines and leaves with `exit_code`; in Python they are ordinary exceptions.
"""

from __future__ import annotations


class LeftwardError(Exception):
    """Something the user can mend.

    >>> error = TextError("the line is not UTF-8", where="train.en:17, byte 4", hint="convert the file to UTF-8")
    >>> print(error)
    the line is not UTF-8
      where: train.en:17, byte 4
      to do: convert the file to UTF-8
    """

    exit_code = 2
    code = "error"

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  to do: {self.hint}")
        return "\n".join(lines)


class SettingsError(LeftwardError):
    """A setting, flag or combination of them that cannot be."""

    code = "settings"


class TextError(LeftwardError):
    """A text file or a line of text that cannot be read as asked."""

    code = "text"


class CheckpointError(LeftwardError):
    """A model folder or checkpoint that is damaged, incomplete or not one."""

    code = "checkpoint"


class DiskError(LeftwardError):
    """A file or folder that could not be written."""

    code = "disk"


class CacheError(LeftwardError):
    """A cache used in a way that cannot give right results."""

    code = "cache"


class DeviceError(LeftwardError):
    """A device that is missing, or whose memory does not suffice."""

    exit_code = 3
    code = "device"


class LeakFound(LeftwardError):
    """A model that reads what it must predict."""

    exit_code = 1
    code = "leak"
