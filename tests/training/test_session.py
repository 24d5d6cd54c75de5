"""One run, from Python: what holds whatever the command line does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.tiny import outcome, write_texts

from leftward import checkpoint, disk
from leftward.errors import SettingsError
from leftward.training import session
from leftward.training.preparation import Prepared, prepare
from leftward.training.session import Report, train
from leftward.wishes import TrainWishes


def prepared(folder: Path, name: str = "out", **more: object) -> Prepared:
    """A run of four steps."""
    wishes = {
        "source": str(folder / "source"),
        "target": str(folder / "target"),
        "out": str(folder / name),
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "vocabulary": 300,
        "context": 32,
        "batch_tokens": 128,
        "steps": 4,
        "save_every": 2,
        "validate_every": 2,
        "log_every": 1,
        "threads": 1,
        "precision": "float32",
    }
    return prepare(TrainWishes(**{**wishes, **more}))


@pytest.fixture
def texts(scratch: Path) -> Path:
    write_texts(scratch)
    return scratch


def test_who_comes_second_is_refused_however_late(texts: Path) -> None:
    """Both were ready before either began, and the lock is free again when the second comes."""
    first, second = prepared(texts), prepared(texts, seed=9)
    train(first)
    before = outcome(texts / "out")
    with pytest.raises(SettingsError, match="another run"):
        train(second)
    assert outcome(texts / "out") == before
    assert not (texts / "out" / disk.LOCK).exists()


def test_a_model_that_does_not_fit_leaves_no_folder(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(session, "Transformer", too_large)
    with pytest.raises(MemoryError):
        train(prepared(texts))
    assert not (texts / "out").exists()


def test_only_the_seed_is_chance(texts: Path) -> None:
    """What the caller drew before has no say in weights or dropout."""
    for number in (1, 2):
        torch.manual_seed(number)
        train(prepared(texts, str(number), dropout=0.3))
    train(prepared(texts, "other", dropout=0.3, seed=2))
    assert outcome(texts / "1") == outcome(texts / "2")
    assert outcome(texts / "1")["model.safetensors"] != outcome(texts / "other")["model.safetensors"]


def test_what_came_of_it(texts: Path) -> None:
    seen: list[Report] = []
    trained = train(prepared(texts), report=seen.append)
    rows = [json.loads(line) for line in (texts / "out" / "log.jsonl").read_text().splitlines()]
    assert (trained.step, trained.steps, trained.is_done, trained.skipped) == (4, 4, True, 0)
    assert trained.target_tokens == rows[-1]["target_tokens"]
    assert trained.seconds >= rows[-1]["seconds"] > 0
    losses = {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}
    assert trained.best_loss == min(losses.values()) == losses[trained.best_step]
    assert trained.counts.samples == 216
    names = [type(report.event).__name__ for report in seen]
    assert names == ["Logged", "Learned", "Logged", "Validated", "Due", "Learned"] * 2
    assert {report.training for report in seen} == {prepared(texts, "again").training}


def test_to_stop_is_to_save_once(texts: Path) -> None:
    """Where the step was saved anyway nothing is written again, and the last step is the end."""
    for stop, saved in ((1, [1]), (2, [2]), (3, [2, 3]), (4, [2, 4])):
        steps: list[int] = []
        run = prepared(texts, f"stopped at {stop}")
        trained = train(
            run,
            report=lambda report, steps=steps: steps.append(report.progress.step),
            should_stop=lambda s=stop, steps=steps: steps[-1] >= s,
        )
        assert (trained.step, trained.is_done) == (stop, stop == 4)
        assert sorted(int(path.name) for path in (run.folder / "checkpoints").iterdir()) == saved


def test_without_validation_the_last_weights_serve(texts: Path) -> None:
    run = replace(prepared(texts), validation_samples=None)
    trained = train(run)
    assert trained.best_loss is None
    loaded = checkpoint.load(run.folder)
    assert loaded.step == 4
    assert disk.read_manifest(run.folder).facts["weights"] == "the last"
    newest = checkpoint.load_state(run.folder / "checkpoints" / "4").weights
    assert all(torch.equal(weight, newest[name]) for name, weight in loaded.model.named_parameters())


def test_without_validation_weights_serve_before_a_state_is_saved(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run cut off between the two does both again; the other way round the weights would stay those of before."""
    done = []
    save_state, publish = checkpoint.save_state, checkpoint.publish_weights
    monkeypatch.setattr(checkpoint, "save_state", lambda *words: (done.append("state"), save_state(*words)))
    monkeypatch.setattr(checkpoint, "publish_weights", lambda *words: (done.append("weights"), publish(*words)))
    train(replace(prepared(texts), validation_samples=None))
    assert done == ["weights", "state"] * 2


def test_a_loss_that_is_no_number_is_written_as_none(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leftward.training import loop

    monkeypatch.setattr(loop, "validate", lambda *_: math.nan)
    trained = train(prepared(texts))
    assert trained.best_loss is None
    rows = [json.loads(line) for line in (texts / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["validation_loss"] for row in rows if "validation_loss" in row] == [None, None]
    # Weights serve all the same, and say that they are not the best of anything.
    assert checkpoint.load(texts / "out").step == 4
    assert disk.read_manifest(texts / "out").facts["weights"] == "the last"
