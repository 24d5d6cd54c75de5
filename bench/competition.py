"""Competitors in turn, each a process of its own; what they answered, as a table and as a file of results.

Rounds are interleaved (everybody once, then everybody again): a machine that slows for a while slows all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import describe_machine, name_machine
from bench.meter import End, Summary, Window, summarize
from bench.pieces import DATA, WORK
from bench.recipe import SIZES, THREADS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


@dataclass
class Answers:
    """All that one competitor printed, over all rounds."""

    windows: list[Window] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    def read(self, output: str) -> None:
        """Take the JSON lines of one process; libraries may print lines of their own between them."""
        for line in output.splitlines():
            if line.startswith('{"window"'):
                self.windows.append(Window(**json.loads(line)["window"]))
            elif line.startswith('{"end"'):
                self.ends.append(End(**json.loads(line)["end"]))


@dataclass(frozen=True)
class Row:
    """One competitor's line of the table."""

    speed: Summary
    parameters: int
    peak_mb: float
    model_mb: float  # the peak without what the process held before it built a model
    loss: float | None  # mean of the last quarter of the steps
    windows: list[Window]


@dataclass(frozen=True)
class Outcome:
    """A whole competition: the rows, and for those who fell the last line they said."""

    rows: dict[str, Row]
    fallen: dict[str, str]

    def best(self, names: Sequence[str]) -> Row | None:
        """The fastest of these."""
        return max(
            (self.rows[name] for name in names if name in self.rows),
            key=lambda row: row.speed.rate,
            default=None,
        )


@dataclass(frozen=True)
class Span:
    """How long one round of one competitor is, in steps."""

    warm: int
    steps: int
    every: int  # steps of a window: a second or so, as the machine counts its time in hundredths


@dataclass(frozen=True)
class Request:
    """What the user of a benchmark asks for."""

    sizes: list[str]
    rounds: int
    steps: int | None
    quick: bool
    data: Path
    work: Path


def read_request(purpose: str | None) -> Request:
    """Read the command line of a benchmark."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default=",".join(SIZES), help="one or several, with commas between")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="steps to measure in one round, instead of the size's own number")
    parser.add_argument("--quick", action="store_true", help="one round of two windows, its results under --work only")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with Multi30k")
    parser.add_argument("--work", type=Path, default=WORK, help="a folder for ids, never committed")
    given = parser.parse_args()
    sizes = given.size.split(",")
    for size in sizes:
        if size not in SIZES:
            parser.error(f"no size is called {size}; there are {', '.join(SIZES)}")
    return Request(sizes, 1 if given.quick else given.rounds, given.steps, given.quick, given.data, given.work)


def command(module: str, precision: str) -> list[str]:
    """How a competitor is started; `compete` adds what is asked of all."""
    return [sys.executable, "-m", module, "--precision", precision]


def hold(
    request: Request,
    commands: Mapping[str, Sequence[str]],
    *,
    benchmark: str,
    entry: str,
    size: str,
    span: Span,
    batches: Path,
) -> Outcome:
    """Run one competition as asked, and write it as an entry into the benchmark's file of this machine."""
    if request.quick:
        span = Span(warm=1, steps=2 * span.every, every=span.every)
    span = dataclasses.replace(span, steps=request.steps or span.steps)
    asked = {"size": size, **dataclasses.asdict(span)}
    words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    outcome = compete(commands, [*words, "--batches", str(batches.resolve())], rounds=request.rounds)
    path = (request.work if request.quick else RESULTS) / f"{benchmark}-{name_machine()}.json"
    write_results(path, entry, asked | {"rounds": request.rounds}, outcome)
    return outcome


def compete(commands: Mapping[str, Sequence[str]], asked: Sequence[str], *, rounds: int) -> Outcome:
    """Run everybody `rounds` times, in turn."""
    # torch reads these before a program can set its threads.
    threads = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    answers = {name: Answers() for name in commands}
    fallen: dict[str, str] = {}
    for turn in range(rounds):
        for name in [name for name in commands if name not in fallen]:
            print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            process = subprocess.run(
                [*commands[name], *asked], cwd=ROOT, env=os.environ | threads, capture_output=True, text=True
            )
            answers[name].read(process.stdout)
            if process.returncode or len(answers[name].ends) <= turn:
                said = process.stderr.strip().splitlines()
                fallen[name] = said[-1] if said else f"exit {process.returncode} before its last line"
    return Outcome({name: make_row(answer) for name, answer in answers.items() if name not in fallen}, fallen)


def make_row(answers: Answers) -> Row:
    """The windows and ends of one competitor in one row."""
    losses = answers.ends[-1].losses
    return Row(
        speed=summarize(answers.windows),
        parameters=answers.ends[-1].parameters,
        peak_mb=max(end.peak_mb for end in answers.ends),
        model_mb=max(end.peak_mb - end.start_mb for end in answers.ends),
        loss=statistics.mean(losses[-max(1, len(losses) // 4) :]) if losses else None,
        windows=answers.windows,
    )


def lay_out(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in plain text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(row))
        for row in (list(zip(line, widths, strict=True)) for line in (heads, *lines))
    )


def write_results(path: Path, entry: str, asked: Mapping[str, object], outcome: Outcome) -> None:
    """Put one competition into a file of results; its other entries stay, each with its own facts."""
    entries = json.loads(path.read_text()) if path.exists() else {}
    entries[entry] = {"machine": describe_machine(), "asked": dict(asked), **dataclasses.asdict(outcome)}
    text = json.dumps(_rounded(entries), indent=1)
    text = re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda inner: " ".join(inner[0].split()), text)  # a window is one line
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    half.write_text(text + "\n")
    half.replace(path)


def _rounded(value: object) -> object:
    """Five digits are more than any figure here deserves."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
