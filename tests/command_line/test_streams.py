"""What is said where: results on standard output, everything else on the error stream, and help at once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shlex
import struct
import subprocess
import sys
import termios
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from tests.training.nursery import ROOT, Ended, Nursery
from tests.training.tiny import RHYTHM, TINY, command, tree, write_texts

from leftward.cli import USAGE
from leftward.wishes import TrainWishes

VERBS = sorted(set(re.findall(r"^  leftward (\w+)", USAGE, re.M)))
FLAGS = [f"--{entry.name.replace('_', '-')}" for entry in fields(TrainWishes)] + ["--show-settings", "--json"]


@pytest.fixture
def texts(scratch: Path) -> Path:
    write_texts(scratch)
    return scratch


def test_a_result_as_json(nursery: Nursery, texts: Path) -> None:
    ended = nursery.run(*command(texts, "pair", texts / "out", "--json"))
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    log = [json.loads(line) for line in (texts / "out" / "log.jsonl").read_text().splitlines()]
    best = min((row for row in log if "validation_loss" in row), key=lambda row: row["validation_loss"])
    assert result["folder"] == str(texts / "out")
    assert (result["step"], result["steps"], result["is_done"]) == (60, 60, True)
    assert (result["best_loss"], result["best_step"]) == (best["validation_loss"], best["step"])
    assert result["target_tokens"] == log[-1]["target_tokens"]
    manifest = json.loads((texts / "out" / "manifest.json").read_text())
    assert manifest["step"] == best["step"] and manifest["validation_loss"] == best["validation_loss"]


def test_without_json_there_is_no_result(nursery: Nursery, texts: Path) -> None:
    ended = nursery.run(*command(texts, "text", texts / "out"))
    assert ended.code == 0 and ended.out == ""
    assert f"saved {texts / 'out'}: 60 steps" in ended.err


@pytest.mark.parametrize(("kind", "verb"), [("pair", "translate"), ("text", "generate")])
def test_the_last_line_is_the_next_command(kind: str, verb: str, nursery: Nursery, texts: Path) -> None:
    ended = nursery.run(*command(texts, kind, texts / "a model", "--steps", 2))
    assert ended.code == 0, ended.err
    last = ended.err.splitlines()[-1]
    assert last == f"next: leftward {verb} '{texts / 'a model'}'"
    assert shlex.split(last)[2] in VERBS


def test_an_interrupted_run_says_so_in_json_too(nursery: Nursery, texts: Path) -> None:
    signals = {"step": 9, "signals": [2]}
    ended = nursery.run(*command(texts, "pair", texts / "out", "--json"), signal_at_step=signals)
    assert ended.code == 130
    result = json.loads(ended.out)
    assert (result["step"], result["steps"], result["is_done"]) == (9, 60, False)


@pytest.mark.parametrize("kind", ["pair", "text"])
def test_show_settings(kind: str, nursery: Nursery, texts: Path) -> None:
    before = tree(texts)
    words = command(texts, kind, texts / "out", "--dropout", 0.25)
    ended = nursery.run(*words, "--show-settings")
    assert ended.code == 0, ended.err
    assert tree(texts) == before
    settings = tomllib.loads(ended.out)
    assert settings["model"]["dropout"] == 0.25
    assert settings["training"]["steps"] == 60
    origins = dict(re.findall(r"^# (\w+): (.*)$", ended.out, re.M))
    assert origins["dropout"] == origins["steps"] == origins["vocabulary"] == "asked for"
    assert origins["tokenizer"] == "default"
    assert "tokens to learn from" in origins["size"]
    assert "split off" in origins["validation_share"]
    asked = {word.removeprefix("--").replace("-", "_") for word in TINY if word.startswith("--")}
    assert asked <= origins.keys()
    # The same as JSON, and the same as what a run then keeps.
    as_json = json.loads(nursery.run(*words, "--show-settings", "--json").out)
    assert as_json == {"settings": settings, "origins": origins}
    assert nursery.run(*words).code == 0
    assert tomllib.loads((texts / "out" / "settings.toml").read_text()) == settings
    # Of a run that is there, all comes from its folder.
    before = tree(texts)
    ended = nursery.run("train", "--resume", "--out", texts / "out", "--show-settings")
    assert tomllib.loads(ended.out) == settings
    assert set(re.findall(r"^# \w+: (.*)$", ended.out, re.M)) == {f"from {texts / 'out'}"}
    assert tree(texts) == before


def test_what_was_chosen_is_said_once(nursery: Nursery, texts: Path) -> None:
    words = ["train", "--source", texts / "source", "--target", texts / "target", "--steps", 2, "--threads", 1]
    ended = nursery.run(*words, "--out", texts / "out")
    assert ended.code == 0, ended.err
    stored = tomllib.loads((texts / "out" / "settings.toml").read_text())["chosen"]
    said = [line.removeprefix("chosen  ") for line in ended.err.splitlines() if line.startswith("chosen  ")]
    assert said == stored and len(said) > 5
    assert "24 of 240 are split off" in ended.err
    assert "chosen" not in nursery.run(*words, "--out", texts / "out", "--resume").err


def test_counts_are_said_at_the_end(nursery: Nursery, texts: Path) -> None:
    """A dropped line and a cut document are counted and said."""
    lines = [(texts / name).read_text().splitlines() for name in ("source", "target")]
    for number in range(0, 240, 12):
        lines[number % 2][number] = " "
        lines[0][number + 5] = "word " * 50
    for name, side in zip(("source", "target"), lines, strict=True):
        (texts / name).write_text("\n".join(side) + "\n")
    validation = ("--validation-source", texts / "source", "--validation-target", texts / "target")
    ended = nursery.run(*command(texts, "pair", texts / "out", *validation, "--steps", 3))
    assert ended.code == 0, ended.err
    said = "240 samples read; 20 left out because a side is empty; 20 left out because they are longer than the context"
    assert said in ended.err
    ended = nursery.run(*command(texts, "text", texts / "lines", "--documents", "line", "--steps", 3))
    assert re.search(r"\d+ documents cut into rows", ended.err), ended.err


@contextmanager
def terminal(columns: int) -> Iterator[tuple[str, list[bytes]]]:
    """A pretended terminal: its name, and what was written to it."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    said: list[bytes] = []

    def read() -> None:
        try:
            while some := os.read(master, 1 << 16):
                said.append(some)
        except OSError:  # the other side was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    yield os.ttyname(slave), said
    os.close(slave)
    reader.join()
    os.close(master)


def on_a_terminal(nursery: Nursery, words: list[object], columns: int, **variables: str) -> tuple[Ended, str]:
    """Run with a terminal for errors."""
    with terminal(columns) as (name, said):
        variables = {"TERM": "xterm", **variables}
        ended = nursery.run(*words, write_errors_to={"terminal": name}, set_variables=variables)
    return ended, b"".join(said).decode().replace("\r\n", "\n")


# Slow enough that the line moves more than once.
LONG = ("--steps", 200, "--validate-every", 50, "--save-every", 100)


def test_the_live_line_of_a_terminal(nursery: Nursery, texts: Path) -> None:
    ended, said = on_a_terminal(nursery, command(texts, "pair", texts / "out", *LONG, "--json"), 200)
    assert ended.code == 0, said
    drawn = said.split("\r")
    assert len(drawn) > 4
    assert json.loads(ended.out)["step"] == 200
    line = drawn[-1].split("\n")[0]
    assert re.match(r"step 200/200  [\d,]+ tokens/s  0 s left  loss \d\.\d{3}  validation \d\.\d{3}", line), line
    assert all(len(part) < 200 for part in drawn[1:-1])
    # A line that grew shorter leaves nothing of the longer one behind.
    shown = drawn[1:-1]
    assert all(len(after) >= len(before.rstrip()) for before, after in zip(shown, shown[1:], strict=False))
    assert "\x1b" not in said


@pytest.mark.parametrize("columns", [40, 20, 7])
def test_a_narrow_terminal(columns: int, nursery: Nursery, texts: Path) -> None:
    ended, said = on_a_terminal(nursery, command(texts, "pair", texts / "out", *LONG), columns)
    assert ended.code == 0, said
    drawn = [part.split("\n")[0] for part in said.split("\r")[1:]]
    assert drawn and all(len(part) < columns for part in drawn)
    assert drawn[-1].rstrip().endswith("…")


def test_an_error_does_not_stand_in_the_live_line(nursery: Nursery, texts: Path) -> None:
    spoiled = {"steps": [30, 31, 32]}
    with terminal(100) as (name, said):
        words = command(texts, "pair", texts / "out")
        hooks = {"write_errors_to": {"terminal": name}, "set_variables": {"TERM": "xterm"}, "spoil_steps": spoiled}
        assert nursery.run(*words, **hooks).code == 2
    text = b"".join(said).decode().replace("\r\n", "\n")
    assert re.search(r"\rstep [^\n]*\nleftward: 3 steps in a row[^\n]*\n  where: [^\n]*\n  to do: [^\n]*\n$", text), (
        text
    )


def test_no_terminal_no_live_line(nursery: Nursery, texts: Path) -> None:
    ended = nursery.run(*command(texts, "pair", texts / "out", *LONG))
    assert "\r" not in ended.err and "\x1b" not in ended.err
    steps = [line for line in ended.err.splitlines() if line.startswith("step ")]
    assert steps[0].startswith("step 1/200") and steps[-1].startswith("step 200/200")
    # One now and then: a file is no place for two hundred of them.
    assert len(steps) <= 2 + ended.seconds / 10 + 1


def test_a_dumb_terminal_is_none(nursery: Nursery, texts: Path) -> None:
    ended, said = on_a_terminal(nursery, command(texts, "pair", texts / "out"), 80, TERM="dumb")
    assert ended.code == 0
    assert "\r" not in said and "step 60/60" in said


def cpu_seconds(words: list[str], **variables: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """How long a command kept a processor busy: a waiting machine makes it no slower."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **variables})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ran


@pytest.mark.parametrize(
    "words",
    [
        *((verb, "--help") for verb in VERBS),
        ("train", "-h"),
        ("--help",),
        (),
        ("--version",),
        ("trian",),
        ("train", "--x"),
    ],
    ids=" ".join,
)
def test_help_and_mistakes_answer_at_once(words: tuple[str, ...]) -> None:
    runs = [cpu_seconds([sys.executable, "-m", "leftward.cli", *words]) for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.15
    code = runs[0][1].returncode
    assert code == (2 if words in (("trian",), ("train", "--x")) else 0), runs[0][1].stderr
    look = f"import sys; from leftward.cli import main; main({list(words)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, cwd=ROOT).returncode == 0


def test_help_names_every_flag_and_shows_an_example() -> None:
    for columns in ("40", "80", "200"):
        ran = cpu_seconds([sys.executable, "-m", "leftward.cli", "train", "--help"], COLUMNS=columns)[1]
        assert ran.stderr == ""
        for flag in FLAGS:
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", ran.stdout), flag
        assert "example: leftward train --source" in ran.stdout
        assert "leftward-model" in ran.stdout


def test_no_arguments_are_examples() -> None:
    ran = cpu_seconds([sys.executable, "-m", "leftward.cli"])[1]
    assert len(re.findall(r"^  leftward \w+ .*  \w", ran.stdout, re.M)) >= 3
    assert {"train", "doctor"} <= set(VERBS)
    for verb in VERBS:
        ran = cpu_seconds([sys.executable, "-m", "leftward.cli", verb, "--help"])[1]
        assert re.search(rf"example: leftward {verb}\b", ran.stdout), verb


def test_the_installed_command() -> None:
    path = Path(sys.executable).parent / "leftward"
    ran = cpu_seconds([str(path), "--version"])[1]
    assert re.fullmatch(r"leftward \d+\.\d+\.\d+\S*\n", ran.stdout), ran.stderr


def test_doctor(nursery: Nursery) -> None:
    plain, ended = nursery.run("doctor"), nursery.run("doctor", "--json")
    assert (plain.code, ended.code) == (0, 0)
    found = json.loads(ended.out)
    assert {"leftward", "python", "torch", "cores", "memory", "device", "here"} <= found.keys()
    for name, value in found.items():
        assert re.search(rf"^{name} +{re.escape(str(value))}$", plain.out, re.M)


def test_a_reader_that_leaves_is_no_error(texts: Path) -> None:
    words = f"{sys.executable} -m leftward.cli train --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", words], capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_locale(encoding: str, texts: Path) -> None:
    """A stream that cannot write a character writes another in its place, and no traceback."""
    name = texts / "नहीं"
    words = [sys.executable, "-m", "leftward.cli", "train", "--text", str(name)]
    ran = subprocess.run(words, capture_output=True, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert ran.returncode == 2
    assert b"there is no such file" in ran.stderr and b"Traceback" not in ran.stderr
    assert ("नहीं".encode() in ran.stderr) == (encoding == "utf-8")


def test_our_own_faults_say_how_to_report_them(nursery: Nursery, texts: Path) -> None:
    out = texts / "out"
    assert nursery.run(*command(texts, "pair", out, "--steps", 3)).code == 0
    # A number that no run ever wrote: not what a person can do by mistake.
    ended = nursery.run(*command(texts, "pair", texts / "other"), break_ours={})
    assert ended.code == 70
    assert ended.err.splitlines()[-3:] == [
        "leftward: this should not happen: ZeroDivisionError: planted",
        "  where: Leftward itself",
        "  to do: run it again with LEFTWARD_DEBUG=1 and report what it prints",
    ]
    ended = nursery.run(*command(texts, "pair", texts / "third"), break_ours={}, set_variables={"LEFTWARD_DEBUG": "1"})
    assert ended.code not in (0, 70)


def test_memory_that_does_not_suffice(nursery: Nursery, texts: Path) -> None:
    ended = nursery.run(*command(texts, "pair", texts / "out"), use_up_memory={})
    assert ended.code == 3
    what, where, hint = ended.err.splitlines()[-3:]
    assert "memory of this machine does not suffice" in what
    assert "where: " in where and "--batch-tokens" in hint


def test_the_rhythm_is_what_was_asked_for(nursery: Nursery, texts: Path) -> None:
    assert nursery.run(*command(texts, "pair", texts / "out")).code == 0
    asked = dict(zip(RHYTHM.split()[::2], map(int, RHYTHM.split()[1::2]), strict=True))
    log = [json.loads(line) for line in (texts / "out" / "log.jsonl").read_text().splitlines()]
    training = [row for row in log if "loss" in row]
    assert [row["step"] for row in training] == list(range(3, 61, asked["--log-every"]))
    validation = [row["step"] for row in log if "validation_loss" in row]
    assert validation == list(range(5, 61, asked["--validate-every"]))
    assert all({"step", "loss", "target_tokens", "seconds"} <= row.keys() for row in training)
    assert sorted(path.name for path in (texts / "out" / "checkpoints").iterdir()) == ["56", "60"]
