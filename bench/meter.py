"""Windows of work: how many tokens, how long, and how much of the machine somebody else had meanwhile.

A window in which other processes took more than `QUIET` of the machine says little, and is left out of the
medians where enough quiet ones remain. Everything is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.06


@dataclass(frozen=True)
class Window:
    """A few steps, timed together."""

    tokens: int
    seconds: float
    other_cpu: float  # share of the machine, 0 to 1

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Moment:
    """The clock, and the seconds of processor that this process and the whole machine have used."""

    wall: float
    own: float
    busy: float

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(time.perf_counter(), time.process_time(), _busy_seconds())

    def window_since(self, before: Moment, tokens: int) -> Window:
        """The window between two moments."""
        wall = self.wall - before.wall
        others = self.busy - before.busy - (self.own - before.own)
        return Window(tokens, wall, max(0.0, others) / (wall * (os.cpu_count() or 1)))


@dataclass(frozen=True)
class End:
    """What a competitor knows when its last window is over."""

    parameters: int
    start_mb: float  # memory before anything of the model existed: the imports and the ids
    peak_mb: float
    losses: list[float]


@dataclass(frozen=True)
class Summary:
    """The windows of one competitor in a few numbers."""

    rate: float
    slowest: float
    fastest: float
    other_cpu: float
    quiet: int
    windows: int


def time_windows(step: Callable[[int], int], *, warm: int, steps: int, every: int) -> Iterator[Window]:
    """Call `step(number)`, which returns its tokens, and time every `every` calls after the first `warm`."""
    for number in range(warm):
        step(number)
    for first in range(warm, warm + steps, every):
        before = Moment.now()
        tokens = sum(step(number) for number in range(first, min(first + every, warm + steps)))
        yield Moment.now().window_since(before, tokens)


def summarize(windows: Sequence[Window]) -> Summary:
    """Medians over the quiet windows; over the quietest quarter where fewer than two are quiet."""
    quiet = [window for window in windows if window.other_cpu <= QUIET]
    used = quiet
    if len(quiet) < 2:
        used = sorted(windows, key=lambda window: window.other_cpu)[: max(2, len(windows) // 4)]
    rates = [window.rate for window in used]
    return Summary(
        rate=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        other_cpu=statistics.median(window.other_cpu for window in used),
        quiet=len(quiet),
        windows=len(windows),
    )


def resident_mb() -> float:
    """Memory this process holds now."""
    return _status_mb("VmRSS")


def peak_mb() -> float:
    """The most memory this process ever held.

    Not `getrusage`: its maximum survives exec, so a child begins with the peak of whoever started it.
    """
    return _status_mb("VmHWM")


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")


def _busy_seconds() -> float:
    """Seconds in which the machine's processors were neither idle nor waiting, since it started."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
