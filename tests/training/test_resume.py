"""A run that was stopped goes on as if it had not been; what would make it another run is refused by name."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training.nursery import Ended, Nursery
from tests.training.tiny import KINDS, command, outcome, rows, tree, write_texts

from leftward import checkpoint, disk

INTERRUPTED = 130
START = "starting from the beginning"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the texts are."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def wholes(texts: Path, nursery: Nursery) -> dict[str, Path]:
    """A run of each kind that nobody stopped."""
    for kind in KINDS:
        ended = nursery.run(*command(texts, kind, texts / kind))
        assert ended.code == 0, ended.err
    return {kind: texts / kind for kind in KINDS}


@pytest.fixture
def half(texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path) -> Path:
    """A run of pairs that was stopped after step 24, with checkpoints of steps 21 and 24."""
    ended = interrupt(nursery, texts, "pair", scratch / "half", 24)
    assert ended.code == INTERRUPTED, ended.err
    return scratch / "half"


def interrupt(
    nursery: Nursery, texts: Path, kind: str, out: Path, step: int, signals: tuple[int, ...] = (signal.SIGINT,)
) -> Ended:
    """Start a run that gets signals in one step."""
    return nursery.run(*command(texts, kind, out), signal_at_step={"step": step, "signals": [*map(int, signals)]})


def steps_at_a_border(whole: Path, texts: Path, nursery: Nursery, kind: str, scratch: Path) -> tuple[int, int]:
    """A step after which a new window of the data begins, and one in the middle of a window."""
    out = scratch / "every step"
    ended = nursery.run(*command(texts, kind, out, "--save-every", 1, "--steps", 30))
    assert ended.code == 0, ended.err
    place = disk.read_manifest(out / "checkpoints" / "30").facts["progress"]["place"]
    windows, batches = place["window"], place["batch"]
    assert windows >= 1
    border = 30 - batches
    return border, border - 3


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_window_and_at_its_border(
    kind: str, texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    border, within = steps_at_a_border(wholes[kind], texts, nursery, kind, scratch)
    for step in (border, within):
        out = scratch / f"stopped at {step}"
        assert interrupt(nursery, texts, kind, out, step).code == INTERRUPTED
        place = disk.read_manifest(out / "checkpoints" / str(step)).facts["progress"]["place"]
        assert (place["batch"] == 0) == (step == border)
        ended = nursery.run(*command(texts, kind, out, "--resume"))
        assert ended.code == 0, ended.err
        assert f"going on from step {step}" in ended.err
        assert outcome(out) == outcome(wholes[kind])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_at_every_step(kind: str, threads: int, texts: Path, nursery: Nursery, scratch: Path) -> None:
    assert nursery.run(*command(texts, kind, scratch / "whole", "--threads", threads)).code == 0
    for step in range(1, 60):
        out = scratch / f"stopped at {step}"
        words = command(texts, kind, out, "--threads", threads)
        signals = {"step": step, "signals": [int(signal.SIGINT)]}
        assert nursery.run(*words, signal_at_step=signals).code == INTERRUPTED
        assert nursery.run(*words, "--resume").code == 0
        assert outcome(out) == outcome(scratch / "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_step(
    kind: str, texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    assert interrupt(nursery, texts, kind, scratch / "out", 1, (signal.SIGKILL,)).code == -signal.SIGKILL
    ended = nursery.run(*command(texts, kind, scratch / "out", "--resume"))
    assert ended.code == 0, ended.err
    assert f"holds no whole checkpoint: {START}" in ended.err
    assert outcome(scratch / "out") == outcome(wholes[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_last_step_nothing_changes(
    kind: str, texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    out = shutil.copytree(wholes[kind], scratch / "out")
    before = tree(out)
    ended = nursery.run(*command(texts, kind, out, "--resume"))
    assert ended.code == 0, ended.err
    assert "going on from step 60" in ended.err
    assert {name: file for name, file in tree(out).items() if file[1]} == {
        name: file for name, file in before.items() if file[1]
    }
    assert tree(out).keys() == before.keys()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_step_and_saves(
    number: int, texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    out = scratch / "a folder"
    ended = interrupt(nursery, texts, "pair", out, 17, (number,))
    assert ended.code == INTERRUPTED
    assert ended.err.splitlines()[-2:] == [
        "stopped after step 17 of 60; the state is saved",
        f"go on with: leftward train --resume --out '{out}'",
    ]
    assert checkpoint.newest_step(out) == 17
    assert not (out / disk.LOCK).exists()
    assert rows(out) == [row for row in rows(wholes["pair"]) if row["step"] <= 17]
    ended = nursery.run("train", "--resume", "--out", out)
    assert ended.code == 0, ended.err
    assert outcome(out) == outcome(wholes["pair"])


def test_two_signals_stop_at_once(texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path) -> None:
    out = scratch / "out"
    ended = interrupt(nursery, texts, "pair", out, 17, (signal.SIGINT, signal.SIGINT))
    assert ended.code == INTERRUPTED
    assert ended.err.splitlines()[-1] == "interrupted"
    assert checkpoint.newest_step(out) == 14
    assert not (out / disk.LOCK).exists()
    assert nursery.run("train", "--resume", "--out", out).code == 0
    assert outcome(out) == outcome(wholes["pair"])


def test_a_signal_in_the_last_step_changes_nothing(
    texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    assert interrupt(nursery, texts, "pair", scratch / "out", 60).code == 0
    assert outcome(scratch / "out") == outcome(wholes["pair"])


def test_steps_that_were_skipped(texts: Path, nursery: Nursery, scratch: Path) -> None:
    """The optimizer counts its own steps: a run that skipped some must not come back with another count."""
    spoiled = {"steps": [1, 4, 5, 23, 40]}
    ended = nursery.run(*command(texts, "pair", scratch / "whole"), spoil_steps=spoiled)
    assert ended.code == 0, ended.err
    assert "5 steps skipped" in ended.err
    out = scratch / "out"
    for step in (2, 20, 39):
        signals = {"step": step, "signals": [int(signal.SIGINT)]}
        resume = ["--resume"] if step > 2 else []
        ended = nursery.run(*command(texts, "pair", out, *resume), spoil_steps=spoiled, signal_at_step=signals)
        assert ended.code == INTERRUPTED, ended.err
    ended = nursery.run(*command(texts, "pair", out, "--resume"), spoil_steps=spoiled)
    assert ended.code == 0, ended.err
    assert outcome(out) == outcome(scratch / "whole")
    skipped = [row["skipped"] for row in rows(out) if "skipped" in row]
    assert skipped == sorted(skipped) and skipped[-1] == 5


def test_an_absent_folder_starts_from_the_beginning(
    texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    ended = nursery.run(*command(texts, "pair", scratch / "out", "--resume"))
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[0] == f"{scratch / 'out'} holds no run: {START}"
    assert outcome(scratch / "out") == outcome(wholes["pair"])


def test_no_folder_and_no_files(nursery: Nursery, scratch: Path) -> None:
    said = nursery.run("train", "--resume", "--out", scratch / "out").refusal()
    assert f"{scratch / 'out'}, which holds no run to go on with" in said
    assert not (scratch / "out").exists()


FLAGS = {
    "--text": "X",
    "--validation-source": "X",
    "--validation-target": "X",
    "--validation-text": "X",
    "--documents": "line",
    "--validation-share": "0.25",
    "--tokenizer": "characters",
    "--vocabulary": "290",
    "--separate-tokenizers": None,
    "--size": "small",
    "--layers": "2",
    "--width": "32",
    "--heads": "4",
    "--feed-forward": "64",
    "--dropout": "0.2",
    "--context": "64",
    "--batch-tokens": "256",
    "--steps": "61",
    "--learning-rate": "0.5",
    "--warm-up": "3",
    "--validate-every": "6",
    "--save-every": "8",
    "--log-every": "2",
    "--precision": "medium",
    "--seed": "6",
    "--threads": "2",
    "--device": "cuda",
}


def test_every_flag_is_tried() -> None:
    from dataclasses import fields

    from leftward.wishes import TrainWishes

    settable = {f"--{entry.name.replace('_', '-')}" for entry in fields(TrainWishes)}
    assert settable - FLAGS.keys() == {"--source", "--target", "--out", "--resume"}


def test_a_flag_that_contradicts_the_run_is_refused(half: Path, texts: Path, nursery: Nursery) -> None:
    before = tree(half)
    for flag, value in FLAGS.items():
        words = [flag] if value is None else [flag, str(texts / "source") if value == "X" else value]
        ended = nursery.run("train", "--resume", "--out", half, *words)
        said = ended.refusal()
        assert f"where: {flag}" in said and str(half) in said, said
    assert tree(half) == before


def test_flags_that_agree_are_no_contradiction(
    half: Path, texts: Path, wholes: dict[str, Path], nursery: Nursery
) -> None:
    """The whole command again, with all that it said and what it left to be chosen."""
    agreeing = ("--validation-share", 0.1, "--documents", "none", "--tokenizer", "bpe", "--device", "cpu")
    ended = nursery.run(*command(texts, "pair", half, "--resume", *agreeing))
    assert ended.code == 0, ended.err
    assert outcome(half) == outcome(wholes["pair"])


def test_a_size_is_all_that_it_stands_for(texts: Path, nursery: Nursery, scratch: Path) -> None:
    words = ["train", "--text", texts / "source", "--vocabulary", 300, "--threads", 1, "--steps", 1]
    assert nursery.run(*words, "--out", scratch / "out", "--size", "tiny", "--layers", 1).code == 0
    said = nursery.run(*words, "--out", scratch / "out", "--size", "tiny", "--resume").refusal()
    assert "layers 1, not 4" in said and "where: --size" in said
    assert nursery.run(*words, "--out", scratch / "out", "--size", "tiny", "--layers", 1, "--resume").code == 0


@pytest.fixture
def own_texts(texts: Path, scratch: Path) -> Path:
    """Texts that a test may spoil."""
    return Path(shutil.copytree(texts, scratch / "texts", ignore=shutil.ignore_patterns("pair", "text")))


def change(path: Path) -> None:
    """Change one letter."""
    text = path.read_text()
    path.write_text(text.replace(text[0], "z", 1))


def test_a_file_that_changed_is_refused_by_name(own_texts: Path, nursery: Nursery, scratch: Path) -> None:
    for name in ("validation source", "validation target"):
        shutil.copy(own_texts / name.split()[1], own_texts / name)
    validation = ("--validation-source", own_texts / "validation source")
    validation += ("--validation-target", own_texts / "validation target")
    out = scratch / "out"
    signals = {"step": 9, "signals": [int(signal.SIGINT)]}
    ended = nursery.run(*command(own_texts, "pair", out, *validation), signal_at_step=signals)
    assert ended.code == INTERRUPTED, ended.err
    before = tree(out)
    for name in ("source", "target", "validation source", "validation target"):
        kept = (own_texts / name).read_bytes()
        change(own_texts / name)
        said = nursery.run("train", "--resume", "--out", out).refusal()
        assert "has changed since the run began" in said
        assert f"where: {own_texts / name}" in said
        (own_texts / name).write_bytes(kept)
    (own_texts / "source").rename(own_texts / "elsewhere")
    assert f"where: {own_texts / 'source'}" in nursery.run("train", "--resume", "--out", out).refusal()
    assert tree(out) == before


def test_files_that_only_moved_are_accepted(
    half: Path, texts: Path, wholes: dict[str, Path], nursery: Nursery, scratch: Path
) -> None:
    for name in ("source", "target"):
        shutil.copy(texts / name, scratch / f"{name} moved")
    moved = ("--source", scratch / "source moved", "--target", scratch / "target moved")
    ended = nursery.run("train", "--resume", "--out", half, *moved)
    assert ended.code == 0, ended.err
    assert outcome(half) == outcome(wholes["pair"])


def test_files_that_changed_places_are_refused(half: Path, texts: Path, nursery: Nursery) -> None:
    swapped = ("--source", texts / "target", "--target", texts / "source")
    said = nursery.run("train", "--resume", "--out", half, *swapped).refusal()
    assert f"where: {texts / 'target'}" in said


def test_another_torch_is_a_warning(half: Path, wholes: dict[str, Path], nursery: Nursery) -> None:
    ended = nursery.run("train", "--resume", "--out", half, other_torch={"version": "9.9.9"})
    assert ended.code == 0, ended.err
    assert f"torch was {torch.__version__} and is 9.9.9: the run goes on, but not to the same bits" in ended.err
    assert outcome(half) == outcome(wholes["pair"])
    ended = nursery.run("train", "--resume", "--out", half)
    assert "torch was" in ended.err


def damage(path: Path) -> None:
    """Flip one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit": lambda folder: damage(folder / "training.safetensors"),
    "a bit of the weights": lambda folder: damage(folder / "model.safetensors"),
    "a bit of the manifest": lambda folder: damage(folder / "manifest.json"),
    "a file": lambda folder: (folder / "tokenizer.json").unlink(),
    "the manifest": lambda folder: (folder / "manifest.json").unlink(),
    "everything": lambda folder: [path.unlink() for path in folder.iterdir()] and None,
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    what: str, half: Path, texts: Path, wholes: dict[str, Path], nursery: Nursery
) -> None:
    DAMAGES[what](half / "checkpoints" / "24")
    ended = interrupt_again(nursery, texts, half, 23)
    assert ended.code == INTERRUPTED, ended.err
    assert "the checkpoint of step 24 is damaged" in ended.err
    assert "going on from step 21" in ended.err
    # The damaged one must not take the place of a whole one among the two that are kept.
    assert sorted(path.name for path in (half / "checkpoints").iterdir()) == ["21", "23"]
    ended = nursery.run("train", "--resume", "--out", half)
    assert ended.code == 0, ended.err
    assert "damaged" not in ended.err
    assert outcome(half) == outcome(wholes["pair"])


def interrupt_again(nursery: Nursery, texts: Path, out: Path, step: int) -> Ended:
    """Go on, to get a signal in another step."""
    signals = {"step": step, "signals": [int(signal.SIGINT)]}
    return nursery.run("train", "--resume", "--out", out, signal_at_step=signals)


def test_without_a_whole_checkpoint_it_starts_from_the_beginning(
    half: Path, wholes: dict[str, Path], nursery: Nursery
) -> None:
    for path in (half / "checkpoints").iterdir():
        damage(path / "model.safetensors")
    ended = nursery.run("train", "--resume", "--out", half)
    assert ended.code == 0, ended.err
    assert f"{half} holds no whole checkpoint: {START}" in ended.err
    assert outcome(half) == outcome(wholes["pair"])
    assert sorted(path.name for path in (half / "checkpoints").iterdir()) == ["56", "60"]


@pytest.mark.parametrize("name", ["settings.toml", "tokenizer.json"])
def test_settings_or_tokenizer_that_changed_are_refused_by_name(name: str, half: Path, nursery: Nursery) -> None:
    path = half / name
    kept = path.read_text()
    path.write_text(kept.replace("smoothing = 0.1", "smoothing = 0.2") + "\n")
    before = tree(half)
    said = nursery.run("train", "--resume", "--out", half).refusal()
    assert f"{name} has changed since the run began" in said and f"where: {path}" in said
    path.unlink()
    said = nursery.run("train", "--resume", "--out", half).refusal()
    assert name in said or str(half) in said
    path.write_text(kept)
    assert tree(half).keys() == before.keys()
    assert nursery.run("train", "--resume", "--out", half).code == 0


def test_an_unknown_setting_names_the_nearest(half: Path, nursery: Nursery) -> None:
    path = half / "settings.toml"
    path.write_text(path.read_text().replace("\nwidth = 16", "\nwitdh = 16"))
    said = nursery.run("train", "--resume", "--out", half).refusal()
    assert 'there is no setting "witdh"' in said
    assert f"where: {path}.model" in said
    assert 'did you mean "width"?' in said


def test_another_run_is_left_alone(half: Path, texts: Path, nursery: Nursery) -> None:
    before = tree(half)
    for extra in ((), ("--seed", 9)):
        said = nursery.run(*command(texts, "pair", half, *extra)).refusal()
        assert "the folder holds another run" in said and "--resume" in said
    assert tree(half) == before
    # Checkpoints alone are a run too.
    for path in half.iterdir():
        if path.is_file():
            path.unlink()
    nursery.run(*command(texts, "pair", half)).refusal()
    nursery.run(*command(texts, "pair", half, "--resume")).refusal()


def test_the_manifest_of_a_checkpoint_knows_every_file(half: Path, texts: Path) -> None:
    facts = disk.read_manifest(half / "checkpoints" / "24").facts
    assert facts["data"] == {name: list(disk.hash_file(texts / name)) for name in ("source", "target")}
    assert facts["torch"] == str(torch.__version__)
    assert facts["step"] == 24


def test_seconds_and_tokens_count_over_all_resumes(half: Path, wholes: dict[str, Path], nursery: Nursery) -> None:
    assert nursery.run("train", "--resume", "--out", half).code == 0
    log = [json.loads(line) for line in (half / "log.jsonl").read_text().splitlines()]
    for name in ("seconds", "target_tokens"):
        counts = [row[name] for row in log if "loss" in row]
        assert counts == sorted(counts) and counts[0] > 0
    assert re.fullmatch(r"[\d.]+", str(log[-1]["seconds"]))
    assert log[-1]["target_tokens"] == rows(wholes["pair"])[-1]["target_tokens"]
