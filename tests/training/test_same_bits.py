"""The same command twice gives the same bits, with one thread and with two."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.nursery import Nursery
from tests.training.tiny import KINDS, command, outcome, write_texts

from leftward.training.preparation import prepare
from leftward.wishes import TrainWishes

# Large enough for torch to share the work out among its threads.
WIDE = ("--width", 64, "--feed-forward", 256, "--batch-tokens", 1024, "--steps", 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_command_twice(kind: str, threads: int, nursery: Nursery, scratch: Path) -> None:
    write_texts(scratch)
    outcomes = []
    for name in ("one", "two"):
        ended = nursery.run(*command(scratch, kind, scratch / name, *WIDE, "--threads", threads))
        assert ended.code == 0, ended.err
        assert ended.threads >= threads
        outcomes.append(outcome(scratch / name))
    assert outcomes[0] == outcomes[1]


def test_another_seed_is_another_run(nursery: Nursery, scratch: Path) -> None:
    write_texts(scratch)
    for name, seed in (("one", 1), ("two", 2)):
        assert nursery.run(*command(scratch, "pair", scratch / name, "--seed", seed)).code == 0
    one, two = outcome(scratch / "one"), outcome(scratch / "two")
    assert one["log"] != two["log"]
    assert one["model.safetensors"] != two["model.safetensors"]


def test_a_tokenizer_does_not_depend_on_how_many_threads_train_it(
    nursery: Nursery, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(scratch, lines=2_000)
    ended = nursery.run(*command(scratch, "pair", scratch / "alone", "--vocabulary", 500, "--steps", 1))
    assert ended.code == 0, ended.err
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    files = {"source": str(scratch / "source"), "target": str(scratch / "target")}
    prepared = prepare(TrainWishes(**files, vocabulary=500, out=str(scratch / "together")))
    assert prepared.kit.files()["tokenizer.json"] == (scratch / "alone" / "tokenizer.json").read_bytes()
