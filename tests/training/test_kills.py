"""A run killed at any moment and gone on with ends as one that was never killed: same log, same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.training.nursery import ROOT, Nursery
from tests.training.tiny import KINDS, command, outcome, write_texts

from leftward import checkpoint, disk
from leftward.errors import CheckpointError

SHORT = ("--steps", 3, "--save-every", 1, "--validate-every", 1, "--log-every", 1)
KILLED = -signal.SIGKILL


@pytest.fixture
def texts(scratch: Path) -> Path:
    """Where the texts are."""
    write_texts(scratch)
    return scratch


@dataclass
class Tally:
    """What the kills met."""

    met: Counter[str] = field(default_factory=Counter)

    def look(self, out: Path, save_every: int) -> None:
        """Look at what a killed run left, before anything is mended: it must be of use as it stands."""
        log = disk.Log(out / "log.jsonl").rows()
        saved = [path for path in (out / "checkpoints").glob("*") if path.name.isdigit()]
        hidden = list(out.rglob(f"{disk.HIDDEN}*"))
        self.met["kills"] += 1
        self.met["before the first checkpoint"] += not saved
        self.met["in the middle of a write"] += bool(hidden)
        assert len(saved) <= checkpoint.KEPT + 1  # for a moment the one that goes and the one that comes are both there
        for path in saved:
            disk.verify(path)
        lost = (log[-1]["step"] if log else 0) - max((int(path.name) for path in saved), default=0)
        assert lost <= save_every
        try:
            assert checkpoint.load(out).step > 0
        except CheckpointError:
            assert not saved  # nothing that serves was ever finished
            self.met["nothing to load yet"] += 1

    def say(self, capsys: pytest.CaptureFixture[str], what: str) -> None:
        """Print the counts."""
        with capsys.disabled():
            print(f"\n{what}: 0 unusable folders, 0 differing logs, 0 differing weights of", dict(self.met))


def kill_at_random(nursery: Nursery, texts: Path, kind: str, kills: int, tally: Tally, *more: object) -> None:
    """Kill runs of one command until so many were killed, each one several times before it may end."""
    slow = {"seconds": 0.001}
    whole = nursery.run(*command(texts, kind, texts / "whole", *more), slow_disk=slow)
    assert whole.code == 0, whole.err
    expected = outcome(texts / "whole")
    chance, number = random.Random(f"{kind}{kills}"), 0
    while tally.met["kills"] < kills:
        number += 1
        out = texts / f"run {number}"
        for life in range(100):
            # Every other run dies before it gets anywhere, the others at any time, and all of them several times.
            longest = whole.seconds * (0.5 if life else 0.15 if number % 2 else 1)
            resume = ["--resume"] if life else []
            words = command(texts, kind, out, *more, *resume)
            ended = nursery.run(*words, after=chance.uniform(0, longest), slow_disk=slow)
            if ended.code == 0:
                break
            assert ended.code == KILLED, ended.err
            tally.look(out, 7)
        assert outcome(out) == expected
        tally.met["runs gone on with to their end"] += 1
    assert tally.met["before the first checkpoint"] and tally.met["in the middle of a write"]


@pytest.mark.timeout(300)
def test_twenty_kills_at_random(nursery: Nursery, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    kill_at_random(nursery, texts, "pair", 20, tally)
    tally.say(capsys, "killed at random")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "more"),
    [("pair", ()), ("pair", ("--separate-tokenizers",)), ("text", ()), ("text", ("--documents", "line"))],
)
def test_two_hundred_kills_at_random(
    kind: str, more: tuple[str, ...], nursery: Nursery, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    kill_at_random(nursery, texts, kind, 200, tally, *more)
    tally.say(capsys, " ".join(["killed at random", kind, *more]))


def kill_at_every_operation(
    nursery: Nursery, texts: Path, words: list[Any], tally: Tally, save_every: int, **span: int
) -> int:
    """Die at the first operation on the disk of some steps, at the second, ...; how many there are."""
    write_texts(texts, lines=60)  # enough for runs so short
    assert nursery.run(*words, "--out", texts / "whole").code == 0
    expected = outcome(texts / "whole")
    for number in range(1, 1_000):
        out = texts / f"killed at {number}"
        ended = nursery.run(*words, "--out", out, kill_at={"number": number, **span})
        if ended.code == 0:
            return number - 1
        assert ended.code == KILLED, ended.err
        tally.look(out, save_every)
        ended = nursery.run(*words, "--out", out, "--resume")
        assert ended.code == 0, ended.err
        assert outcome(out) == expected
        assert not list(out.rglob(f"{disk.HIDDEN}*"))
    raise AssertionError("it never came to an end")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_every_operation_of_a_save(
    kind: str, nursery: Nursery, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third save is the first that removes an older one; with it come rows of the log and weights that serve."""
    tally = Tally()
    words = command(texts, kind, texts, *SHORT)
    assert kill_at_every_operation(nursery, texts, words, tally, 1, after_step=3) > 40
    assert not tally.met["before the first checkpoint"]
    tally.say(capsys, f"killed at every operation of a save, {kind}")


@pytest.mark.timeout(300)
def test_a_kill_at_every_operation_before_the_first_step(nursery: Nursery, texts: Path) -> None:
    words = command(texts, "pair", texts, *SHORT, "--separate-tokenizers")
    tally = Tally()
    assert kill_at_every_operation(nursery, texts, words, tally, 1, before_step=1) > 20
    assert tally.met["before the first checkpoint"] == tally.met["kills"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_every_operation_of_a_run(
    kind: str, nursery: Nursery, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    rhythm = ("--steps", 11, "--save-every", 2, "--validate-every", 3, "--log-every", 1)
    assert kill_at_every_operation(nursery, texts, command(texts, kind, texts, *rhythm), tally, 2) > 150
    tally.say(capsys, f"killed at every operation of a run, {kind}")


def kill_the_real_command(texts: Path, kills: int, tally: Tally) -> None:
    """The same with nothing in between: the command as a person gives it, in a process of its own."""

    def start(out: Path, *more: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "leftward.cli", *map(str, command(texts, "pair", out, *more))]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    whole = start(texts / "whole")
    said = whole.communicate(timeout=150)[1].decode()
    assert whole.returncode == 0, said
    expected = outcome(texts / "whole")
    chance, number, life = random.Random(kills), 0, 0
    while True:
        out = texts / f"run {number}"
        run = start(out, *(["--resume"] if life else []))
        if tally.met["kills"] < kills:
            # Starting takes seconds and training less than one: a kill by the clock would rarely meet it.
            until, size = time.monotonic() + 100, chance.choice((1, chance.randrange(6_000)))
            while run.poll() is None and time.monotonic() < until and _size(out / "log.jsonl") < size:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.02))
            run.kill()
        said = run.communicate(timeout=150)[1].decode()
        if run.returncode == KILLED:
            tally.look(out, 7)
            life += 1
            continue
        assert run.returncode == 0, said
        assert outcome(out) == expected
        tally.met["runs gone on with to their end"] += 1
        number, life = number + 1, 0
        if tally.met["kills"] >= kills:
            return


def _size(path: Path) -> int:
    return path.stat().st_size if os.path.exists(path) else 0


@pytest.mark.timeout(300)
def test_three_kills_of_the_real_command(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    kill_the_real_command(texts, 3, tally)
    tally.say(capsys, "the real command, killed at random")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_of_the_real_command(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    kill_the_real_command(texts, 20, tally)
    tally.say(capsys, "the real command, killed at random")
