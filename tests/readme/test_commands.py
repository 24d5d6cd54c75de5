"""Every command of the README runs, on models trained for 20 steps; `make` is run by whoever runs these tests."""

import random
import re
import shlex
from pathlib import Path

import pytest

from leftward.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
COMMANDS = [
    line.removeprefix(".venv/bin/")
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    for line in block.splitlines()
    if line.removeprefix(".venv/bin/").startswith("leftward ")
]
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--feed-forward", "16", "--steps", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    draw = random.Random(0)
    words = ["a", "dog", "cat", "man", "sees", "runs", "red", "blue", "house", "in", "the"]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 7))) for _ in range(120)]
    for name, text in (("train", lines), ("test", lines[:5])):
        (folder / f"{name}.en").write_text("\n".join(text) + "\n")
        (folder / f"{name}.de").write_text("\n".join(line.upper() for line in text) + "\n")
    pair = ["--source", str(folder / "train.en"), "--target", str(folder / "train.de")]
    assert main(["train", *pair, "--out", str(folder / "en-de"), *SMALL]) == 0
    assert main(["train", "--text", str(folder / "train.en"), "--out", str(folder / "model"), *SMALL]) == 0
    return folder


def test_there_are_commands():
    assert {shlex.split(command)[1] for command in COMMANDS} >= {"train", "translate", "generate", "evaluate", "audit"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    if ">" in words:
        words = words[: words.index(">")]
    assert main(words[1:]) == 0
    assert capsys.readouterr().out


def test_the_python_of_the_readme_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S):
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102  the README's own words
