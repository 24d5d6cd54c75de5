"""What nobody asked for is chosen from facts alone, and the reason is kept with the run."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.training.tiny import write_texts

from leftward.errors import SettingsError
from leftward.settings import ControlIds, Data, Pieces, Run
from leftward.training import plan, preparation
from leftward.training.plan import SIZES, Choices, Facts, choose_held_out, choose_vocabulary, make_run
from leftward.training.preparation import prepare
from leftward.wishes import TrainWishes

PAIR, TEXT = Data(source="/a", target="/b"), Data(text="/a")
PIECES = Pieces("bpe", ControlIds(8, 9))
FACTS = Facts(
    rows=29_000,
    target_tokens=480_000,
    vocabulary=10_000,
    source_vocabulary=0,
    cores=2,
    device="cpu",
    medium_is_float32=True,
)

facts = some.builds(
    Facts,
    rows=some.integers(1, 10**8),
    target_tokens=some.integers(1, 10**11),
    vocabulary=some.integers(258, 64_000),
    source_vocabulary=some.just(0),
    cores=some.integers(1, 256),
    device=some.sampled_from(("cpu", "cuda", "mps")),
    medium_is_float32=some.booleans(),
)


def make(facts: Facts, data: Data = PAIR, **wishes: object) -> tuple[Run, dict[str, str]]:
    choices = Choices()
    return make_run(TrainWishes(**wishes), data, PIECES, facts, choices), choices.origins


@given(facts, some.sampled_from((PAIR, TEXT)))
def test_the_same_facts_give_the_same_run(facts: Facts, data: Data) -> None:
    run, origins = make(facts, data)
    assert (run, origins) == make(facts, data)
    assert run.training is not None
    assert run.training.steps >= 100
    # A step has room for a row; and no setting is there without a word on where it came from.
    assert run.training.batch_tokens >= min(run.model.context, 256)
    assert set(origins) >= {
        "size",
        "batch_tokens",
        "steps",
        "precision",
        "learning_rate",
        "warm_up",
        "threads",
        "device",
    }
    assert run.chosen == tuple(f"{name}: {why}" for name, why in origins.items() if why not in ("asked for", "default"))
    assert run.model.has_encoder == (data is PAIR)


@given(facts, some.sampled_from((PAIR, TEXT)), some.data())
def test_what_is_asked_for_is_done_and_not_explained(facts: Facts, data: Data, draw: some.DataObject) -> None:
    asked = {
        "layers": draw.draw(some.integers(1, 3)),
        "width": 24,
        "heads": draw.draw(some.sampled_from((1, 2, 3))),
        "feed_forward": draw.draw(some.integers(1, 99)),
        "dropout": draw.draw(some.floats(0, 0.9)),
        "context": draw.draw(some.integers(1, 99)),
    }
    trained = {
        "batch_tokens": draw.draw(some.integers(1, 10**6)),
        "steps": draw.draw(some.integers(1, 10**6)),
        "learning_rate": draw.draw(some.floats(1e-6, 1)),
        "warm_up": draw.draw(some.integers(0, 99)),
        "validate_every": draw.draw(some.integers(1, 99)),
        "save_every": draw.draw(some.integers(1, 99)),
        "log_every": draw.draw(some.integers(1, 99)),
        "precision": draw.draw(some.sampled_from(("float32", "medium", "bfloat16"))),
        "seed": draw.draw(some.integers(0, 99)),
        "threads": draw.draw(some.integers(1, 99)),
        "device": draw.draw(some.sampled_from(("cpu", "cuda"))),
    }
    run, origins = make(facts, data, **asked, **trained, size="small")
    stack = run.model.decoder
    assert (stack.layers, stack.heads, stack.feed_forward) == (asked["layers"], asked["heads"], asked["feed_forward"])
    assert (run.model.width, run.model.dropout, run.model.context) == (24, asked["dropout"], asked["context"])
    assert {name: getattr(run.training, name) for name in trained} == trained
    assert run.chosen == ()
    assert set(origins.values()) == {"asked for"}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    run, _ = make(FACTS, size=name)
    size, stack = SIZES[name], run.model.decoder
    assert (stack.layers, run.model.width, stack.feed_forward, stack.heads, run.model.dropout) == (
        size.layers,
        size.width,
        size.feed_forward,
        size.heads,
        size.dropout,
    )
    assert run.model.encoder == stack
    text, _ = make(FACTS, TEXT, size=name)
    assert text.model.decoder == stack and text.model.encoder is None


def test_the_promised_sizes() -> None:
    assert [(size.layers, size.width, size.feed_forward, size.heads, size.dropout) for size in SIZES.values()] == [
        (4, 128, 256, 4, 0.3),
        (4, 256, 1024, 4, 0.2),
        (6, 512, 2048, 8, 0.1),
        (6, 1024, 4096, 16, 0.3),
    ]


def reason(run: Run, name: str) -> str:
    [line] = [line for line in run.chosen if line.startswith(f"{name}: ")]
    return line


@pytest.mark.parametrize(
    ("tokens", "device", "size"),
    [
        (4_999_999, "cpu", "tiny"),
        (4_999_999, "cuda", "tiny"),
        (5_000_000, "cpu", "small"),
        (10**9, "cpu", "small"),
        (49_999_999, "cuda", "small"),
        (50_000_000, "cuda", "base"),
    ],
)
def test_more_text_and_a_gpu_give_a_larger_model(tokens: int, device: str, size: str) -> None:
    run, _ = make(replace(FACTS, target_tokens=tokens, device=device))
    assert run.model.width == SIZES[size].width
    assert f"{tokens:,}" in reason(run, "size")


@pytest.mark.parametrize(
    ("tokens", "device", "batch"),
    [(100, "cpu", 512), (40_000, "cpu", 2_000), (10**8, "cpu", 4_096), (10**8, "cuda", 24_576)],
)
def test_batches(tokens: int, device: str, batch: int) -> None:
    run, _ = make(replace(FACTS, target_tokens=tokens, device=device))
    assert run.training and run.training.batch_tokens == batch
    assert f"{tokens:,}" in reason(run, "batch_tokens")


def test_steps_are_thirty_passes_or_an_hour() -> None:
    short, _ = make(replace(FACTS, target_tokens=40_000))
    assert short.training and short.training.steps == 30 * 40_000 // 2_000
    assert "30 passes" in reason(short, "steps")
    hours = [make(replace(FACTS, target_tokens=10**9, cores=cores))[0] for cores in (2, 4)]
    few, many = (run.training.steps for run in hours if run.training)
    assert many == pytest.approx(2 * few, abs=2)
    assert "an hour on 2 cores" in reason(hours[0], "steps")
    gpu, _ = make(replace(FACTS, target_tokens=10**9, device="cuda"))
    assert "30 passes" in reason(gpu, "steps")


@pytest.mark.parametrize(
    ("device", "medium", "precision"),
    [("cuda", False, "bfloat16"), ("cpu", True, "medium"), ("cpu", False, "float32"), ("mps", False, "float32")],
)
def test_precision(device: str, medium: bool, precision: str) -> None:
    run, origins = make(replace(FACTS, device=device, medium_is_float32=medium))
    assert run.training and run.training.precision == precision
    if precision == "float32":
        assert origins["precision"] == "default"
    else:
        assert reason(run, "precision")


def test_vocabulary() -> None:
    for rows, expected, why in ((499_999, 10_000, "few lines"), (500_000, 32_000, "many lines")):
        choices = Choices()
        assert choose_vocabulary(None, rows, choices) == expected
        assert choices.chosen == (f"vocabulary: {why}",)
    choices = Choices()
    assert choose_vocabulary(777, 1, choices) == 777
    assert choices.chosen == ()
    with pytest.raises(SettingsError, match="too large"):
        choose_vocabulary(10**9, 1, Choices())


@given(some.integers(2, 10**7))
def test_the_part_held_out(rows: int) -> None:
    choices = Choices()
    number = choose_held_out(None, rows, choices)
    assert 1 <= number <= min(2000, max(1, rows // 10))
    [line] = choices.chosen
    assert f"{number:,} of {rows:,}" in line
    assert choose_held_out(0.5, rows, Choices()) == max(1, round(rows / 2))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_no_share(share: float) -> None:
    with pytest.raises(SettingsError) as caught:
        choose_held_out(share, 100, Choices())
    assert caught.value.where == "--validation-share"


@pytest.mark.parametrize("kind", ["pair", "text", "lines"])
def test_the_reasons_stand_in_the_settings_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    wishes = {
        "pair": TrainWishes(source=source, target=target, out=str(tmp_path / "out")),
        "text": TrainWishes(text=source, out=str(tmp_path / "out")),
        "lines": TrainWishes(text=source, documents="line", out=str(tmp_path / "out")),
    }[kind]
    for exact in (True, False):
        monkeypatch.setattr(preparation, "is_medium_as_exact_as_float32", lambda exact=exact: exact)
        prepared = prepare(wishes)
        stored = tomllib.loads(prepared.kit.files()["settings.toml"].decode())
        explained = {line.split(": ")[0] for line in stored["chosen"]}
        expected = {"size", "batch_tokens", "steps", "vocabulary", "validation_share"}
        assert explained >= expected | ({"precision"} if exact else set())
        for line in stored["chosen"]:
            name, _, why = line.partition(": ")
            assert prepared.origins[name] == why
        assert stored["training"]["precision"] == ("medium" if exact else "float32")
    assert list(tmp_path.iterdir()) == [tmp_path / "source", tmp_path / "target"] or not (tmp_path / "out").exists()


def test_the_clock_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timing would make another run of the same command."""
    import time

    for name in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("it looked at the clock"))
    assert make(FACTS) == make(FACTS)
    assert not hasattr(plan, "time")
