"""Runs so small that hundreds fit into a minute: their texts, their flags, and what of them must be equal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SHAPE = "--layers 1 --width 16 --heads 2 --feed-forward 32 --dropout 0.1 --context 32 --vocabulary 300"
RHYTHM = "--steps 60 --save-every 7 --validate-every 5 --log-every 3"
MACHINE = "--batch-tokens 128 --threads 1 --precision float32 --seed 5"
TINY = [*SHAPE.split(), *RHYTHM.split(), *MACHINE.split()]
KINDS = ("pair", "text")


def write_texts(folder: Path, *, lines: int = 240, seed: int = 1) -> None:
    """Write `source` and `target`, whose lines are the same words in two languages, between 1 and 8 of them."""
    chance = random.Random(seed)

    def word(letters: str) -> str:
        return "".join(chance.choices(letters, k=chance.randrange(1, 6)))

    words = [(word("abcdefgh"), word("mnopqrst")) for _ in range(60)]
    pairs = [chance.choices(words, k=chance.randrange(1, 9)) for _ in range(lines)]
    for side, name in enumerate(("source", "target")):
        text = "".join(" ".join(word[side] for word in pair) + "\n" for pair in pairs)
        (folder / name).write_text(text)


def command(folder: Path, kind: str, out: Path, *more: object) -> list[object]:
    """The command that trains on the texts of a folder; later flags overrule the tiny ones."""
    text = ["--text", folder / "source"]
    pair = ["--source", folder / "source", "--target", folder / "target"]
    return ["train", *(pair if kind == "pair" else text), *TINY, "--out", out, *more]


def rows(out: Path) -> list[dict[str, Any]]:
    """The log without what the clock says."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def outcome(out: Path) -> dict[str, Any]:
    """All that two runs of one command must have in common."""
    names = [name for name in ("tokenizer.json", "tokenizer.source.json", "settings.toml") if (out / name).exists()]
    newest = max((out / "checkpoints").iterdir(), key=lambda path: int(path.name))
    files = [*(out / name for name in names), out / "model.safetensors", *sorted(newest.glob("*.safetensors"))]
    return {"log": rows(out), "step": newest.name} | {str(path.relative_to(out)): path.read_bytes() for path in files}


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: when it was written, and what it holds."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
