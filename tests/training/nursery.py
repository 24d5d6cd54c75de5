"""Runs of the command line in milliseconds: a process with torch warm forks a child for each.

Importing torch takes seconds, and so does an optimizer's first step; two hundred kills would take half an hour. The
children are forked from a process that has only ever had one thread: with more, a child could wait for ever for one
that was not copied.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65_534
LONGEST = 100.0  # seconds; a child that takes longer hangs


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int  # the exit code, or minus the signal that killed it
    out: str
    err: str
    seconds: float
    threads: int  # that it had in the end; 0 where it was killed

    def refusal(self, code: int = 2) -> str:
        """What a refused run said: three lines that say what, where and what to do, and no result."""
        assert self.code == code, self.err
        assert self.out == ""
        assert "Traceback" not in self.err and "this should not happen" not in self.err
        what, where, hint = self.err.splitlines()[-3:]
        assert what.startswith("leftward: ") and len(what) > 15, self.err
        assert where.startswith("  where: ") and len(where) > 10, self.err
        assert hint.startswith("  to do: ") and len(hint) > 12, self.err
        return "\n".join((what, where, hint))


class Nursery:
    """The side of the tests."""

    def __init__(self) -> None:
        alone = {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(ROOT),
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.training.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **alone},
            cwd=ROOT,
            text=True,
        )

    def run(self, *arguments: object, after: float | None = None, **hooks: Any) -> Ended:
        """Run `leftward ARGUMENTS`; `after` so many seconds it is killed. The hooks are those in HOOKS."""
        return self.race([arguments], after=after, **hooks)[0]

    def race(self, runs: list[tuple[object, ...]], *, after: float | None = None, **hooks: Any) -> list[Ended]:
        """Run several at once."""
        request = {"runs": [[str(word) for word in words] for words in runs], "after": after, "hooks": hooks}
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return [Ended(**ended) for ended in json.loads(self._server.stdout.readline())]

    def close(self) -> None:
        """End it."""
        self._server.communicate()
        assert self._server.returncode == 0


@cache
def _only() -> Nursery:
    ours = Nursery()
    atexit.register(ours.close)
    return ours


@pytest.fixture(scope="session")
def nursery() -> Nursery:
    """One for all tests of a worker, whichever folder they are in."""
    return _only()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where the machine has one: thousands of pushes to a busy disk would take minutes."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        yield Path(folder)


def _watch(see: Callable[[str], None]) -> None:
    """Call `see` with the kind of every operation on the disk, just before it would be done."""
    from leftward import disk

    does = disk._operation

    def watched(name: str, where: Path, action: Callable[[], Any]) -> Any:
        def seen() -> Any:
            see(name)
            return action()

        return does(name, where, seen)

    disk._operation = watched


def _before_step(act: Callable[[int], None]) -> None:
    """Call `act` with the number of every step that is about to be learned."""
    from leftward.training import loop

    learn = loop.learn

    def watched(model: Any, optimizer: Any, batch: Any, training: Any, number: int) -> Any:
        act(number)
        return learn(model, optimizer, batch, training, number)

    loop.learn = watched


def kill_at(number: int, after_step: int = 0, before_step: int = 1 << 40) -> None:
    """Die just before an operation on the disk, counted from the last one before one step to that before another."""
    count, step = 0, 0

    def see(name: str) -> None:
        nonlocal count
        count += after_step <= step < before_step
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(now: int) -> None:
        nonlocal step
        step = now

    _watch(see)
    _before_step(note)


def fill_disk_at(number: int) -> None:
    """From one operation on, nothing can be written any more; what is there can be removed and renamed."""
    count = 0

    def see(name: str) -> None:
        nonlocal count
        count += 1
        if count >= number and name in ("write", "make", "open"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _watch(see)


def slow_disk(seconds: float) -> None:
    """Let every operation on the disk take its time, as it does outside of memory."""
    _watch(lambda name: time.sleep(seconds))


def signal_at_step(step: int, signals: list[int]) -> None:
    """Get these signals at the beginning of a step."""

    def act(now: int) -> None:
        for one in signals if now == step else ():
            os.kill(os.getpid(), one)

    _before_step(act)


def spoil_steps(steps: list[int]) -> None:
    """Let the loss of these steps be no number."""
    from leftward.training import loop

    loss_of, step = loop.loss_of, 0

    def note(now: int) -> None:
        nonlocal step
        step = now

    def spoiled(model: Any, lesson: Any, *, smoothing: float = 0.0) -> Any:
        loss = loss_of(model, lesson, smoothing=smoothing)
        return loss._replace(total=loss.total * math.nan, plain=loss.plain * math.nan) if step in steps else loss

    _before_step(note)
    loop.loss_of = spoiled


def write_errors_to(terminal: str) -> None:
    """Have a terminal for the error stream."""
    os.dup2(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), 2)


def set_variables(**variables: str) -> None:
    """Have these variables in the environment."""
    os.environ.update(variables)


def break_ours() -> None:
    """Have a bug."""

    def act(now: int) -> None:
        raise ZeroDivisionError("planted")

    _before_step(act)


def use_up_memory() -> None:
    """Ask torch for more than there is."""

    def act(now: int) -> None:
        import torch

        torch.empty(1 << 50, dtype=torch.uint8)

    _before_step(act)


def be_nobody() -> None:
    """Give up the rights of root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def other_torch(version: str) -> None:
    """Say that torch has another version."""
    import torch

    torch.__version__ = version


HOOKS = {
    act.__name__: act
    for act in (
        kill_at,
        fill_disk_at,
        slow_disk,
        signal_at_step,
        spoil_steps,
        write_errors_to,
        set_variables,
        break_ours,
        use_up_memory,
        be_nobody,
        other_torch,
    )
}


def _serve() -> None:
    import torch

    torch.set_num_threads(1)
    _warm_up()
    assert len(os.listdir("/proc/self/task")) == 1, "a child of many threads would hang"
    for line in sys.stdin:
        request = json.loads(line)
        children = [_Child(words, request["hooks"]) for words in request["runs"]]
        after = LONGEST if request["after"] is None else request["after"]
        sys.stdout.write(json.dumps([child.wait(after) for child in children]) + "\n")
        sys.stdout.flush()


def _warm_up() -> None:
    """Train a little, so that all that is imported late is there."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        text = Path(folder, "text")
        text.write_text("so it begins\n" * 30)
        some = "--steps 2 --layers 1 --width 8 --heads 2 --feed-forward 8 --vocabulary 260 --context 16 --threads 1"
        for number, files in enumerate((["--text", text], ["--source", text, "--target", text])):
            words = ["train", *map(str, files), *some.split(), "--batch-tokens", "64", "--out", f"{folder}/{number}"]
            with contextlib.redirect_stderr(nowhere):
                from leftward.cli import main

                assert main(words) == 0


class _Child:
    def __init__(self, words: list[str], hooks: dict[str, dict[str, Any]]) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115  closed when it has ended
        self._began = time.monotonic()
        self._id = os.fork()
        if self._id == 0:
            try:
                self._live(words, hooks)
            finally:
                os._exit(99)

    def _live(self, words: list[str], hooks: dict[str, dict[str, Any]]) -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, file in enumerate(self._files[:2], start=1):
            os.dup2(file.fileno(), descriptor)
        from leftward import cli

        for name, settings in hooks.items():
            HOOKS[name](**settings)
        code = cli.main(words)
        sys.stdout.flush()
        os.write(self._files[2].fileno(), str(len(os.listdir("/proc/self/task"))).encode())
        os._exit(code)

    def wait(self, seconds: float) -> dict[str, Any]:
        watched = os.pidfd_open(self._id)
        left = self._began + seconds - time.monotonic()
        if not select.select([watched], [], [], max(0, left))[0]:
            os.kill(self._id, signal.SIGKILL)
        os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(self._id, 0)[1])
        seconds = time.monotonic() - self._began
        said = []
        for file in self._files:
            file.seek(0)
            said.append(file.read().decode())
            file.close()
        return {"code": code, "out": said[0], "err": said[1], "seconds": seconds, "threads": int(said[2] or 0)}


if __name__ == "__main__":
    _serve()
