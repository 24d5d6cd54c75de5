"""From files to rows: a pair stays a pair, whatever stands in it, and what is held out is predicted once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as some
from tests.training.tiny import write_texts

from leftward.errors import LeftwardError, SettingsError, TextError
from leftward.text.samples import Samples
from leftward.text.stream import Stream, once
from leftward.training.preparation import Prepared, prepare
from leftward.wishes import TrainWishes

BOM = b"\xef\xbb\xbf"
# What other readers end a line at, take away, put together, or choke on.
HOSTILE = "\r\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x1f\0\ufeff\u200b\u200d\u00a0\t\u0301é👩नि<s></s>\U0010ffff\ufffd"
inside = some.lists(some.sampled_from(HOSTILE) | some.sampled_from("abc ") | some.characters(codec="utf-8"), max_size=8)


@some.composite
def lines(draw) -> str:
    """A line without \\n that no rule of ours changes: neither a \\r before its end nor a mark at its beginning."""
    text = "".join(draw(inside)).replace("\n", "")
    text = ("x" if text.startswith("\ufeff") else "") + text + ("x" if text.endswith("\r") else "")
    return draw(some.sampled_from(("", "   ", text, text, "x" * 40)))


@some.composite
def files(draw) -> tuple[list[tuple[str, str]], bytes, bytes, str]:
    """Pairs of lines, the two files they are written to, and what is wrong with those."""
    pairs = draw(some.lists(some.tuples(lines(), lines()), max_size=12))
    pairs.insert(draw(some.integers(0, len(pairs))), ("begin", "Anfang"))  # or else there may be nothing to learn

    def write(side: int) -> bytes:
        ends = draw(some.lists(some.sampled_from((b"\n", b"\r\n")), min_size=len(pairs), max_size=len(pairs)))
        body = b"".join(pair[side].encode() + end for pair, end in zip(pairs, ends, strict=True))
        if pairs[-1][side] and draw(some.booleans()):
            body = body.removesuffix(b"\n").removesuffix(b"\r")
        return (BOM if draw(some.booleans()) else b"") + body

    sides = [write(0), write(1)]
    fault = draw(
        some.sampled_from(("none", "none", "none", "a line too many", "a byte that is no text", "a line lost"))
    )
    which = draw(some.integers(0, 1))
    if fault == "a line too many":
        sides[which] = b"one more\n" + sides[which].removeprefix(BOM)
    elif fault == "a byte that is no text":
        at = draw(some.integers(0, len(sides[which])))
        sides[which] = (
            sides[which][:at] + draw(some.sampled_from((b"\xff", b"\xc0", b"\xed\xa0\x80"))) + sides[which][at:]
        )
    elif fault == "a line lost":
        sides[which] = sides[which].partition(b"\n")[2]
    return pairs, sides[0], sides[1], fault


@pytest.mark.timeout(300)
def test_no_pair_ever_shifts(tmp_path: Path) -> None:
    """Rows of ids, decoded, are the very lines that were written side by side, and only those that must go are gone."""
    met: Counter[str] = Counter()

    @seed(20)
    @settings(max_examples=300, database=None)
    @given(files(), some.sampled_from(("bpe", "characters")), some.booleans())
    def try_one(written, kind, separate) -> None:
        require_no_shift(tmp_path, met, written, kind, separate)

    try_one()
    # Nothing is proved by files that are refused, or by files that no reader would shift.
    assert met["read"] > 100 and met["refused"] > 50
    assert met["a reader that ends lines elsewhere would shift"] > 30


def require_no_shift(tmp_path: Path, met: Counter[str], written, kind: str, separate: bool) -> None:
    pairs, source, target, fault = written
    for name, content in (("source", source), ("target", target)):
        (tmp_path / name).write_bytes(content)
    paths = str(tmp_path / "source"), str(tmp_path / "target")
    wishes = TrainWishes(
        source=paths[0],
        target=paths[1],
        validation_source=paths[0],
        validation_target=paths[1],
        tokenizer=kind,
        vocabulary=300 if kind == "bpe" else None,
        separate_tokenizers=separate or None,
        context=30,
        batch_tokens=64,
        precision="float32",
        out=str(tmp_path / "out"),
    )
    try:
        prepared = prepare(wishes)
    except LeftwardError as error:
        assert error.where and error.hint
        # A NUL is text, but in a file of a few bytes it speaks for another encoding.
        assert fault != "none" or b"\0" in source + target, error
        met["refused"] += 1
        return
    finally:
        assert not (tmp_path / "out").exists()
    assert fault == "none"
    met["read"] += 1
    kit = prepared.kit
    filled = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    encoded = [(kit.source.encode(one), kit.target.encode(other)) for one, other in filled]
    fitting = [pair for pair, ids in zip(filled, encoded, strict=True) if max(map(len, ids)) < 30]
    samples = prepared.training_samples
    assert samples.size == len(pairs)
    in_order = samples.rows(np.arange(samples.size), None)
    assert decoded(prepared, in_order.source, in_order.target) == fitting
    counts = in_order.counts
    assert (counts.empty, counts.long) == (len(pairs) - len(filled), len(filled) - len(fitting))
    assert (counts.samples, counts.unknown) == (len(pairs), 0)
    # In the order of training and in that of validation too, whoever's batch they are in.
    validation = prepared.validation_samples
    assert validation is not None
    seen: Counter[tuple[str, str]] = Counter()
    for batch in once(validation, 64):
        seen.update(decoded(prepared, batch.source, batch.target))
    assert seen == Counter(fitting)
    assert prepared.training.batch_tokens == 64
    stream, trained = Stream([samples], budget=64, seed=prepared.training.seed), Counter()
    for batch in stream.batches():
        if batch.place.window:
            break
        trained.update(decoded(prepared, batch.source, batch.target))
    assert trained == Counter(fitting)
    if "\n".join(pair[0] for pair in pairs).splitlines() != [pair[0] for pair in pairs]:
        met["a reader that ends lines elsewhere would shift"] += 1


def decoded(prepared: Prepared, source, target) -> list[tuple[str, str]]:
    """Rows of ids as text, their controls checked and taken off."""
    kit, found = prepared.kit, []
    for reads, writes in zip(source, target, strict=True):
        assert reads[-1] == kit.source.controls.end
        assert writes[0] == kit.target.controls.start and writes[-1] == kit.target.controls.end
        found.append((kit.source.decode(reads.tolist()), kit.target.decode(writes.tolist())))
    return found


def wishes_for(folder: Path, **more: object) -> TrainWishes:
    write_texts(folder)
    few = {"vocabulary": 300, "context": 32, "batch_tokens": 128, "precision": "float32", "out": str(folder / "out")}
    return TrainWishes(**{**few, **more})


def test_pairs_held_out_are_not_trained_on(tmp_path: Path) -> None:
    files = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    held_out = []
    for number in (1, 1, 2):
        prepared = prepare(wishes_for(tmp_path, **files, validation_share=0.2, seed=number))
        parts = []
        for samples in (prepared.training_samples, prepared.validation_samples):
            assert samples is not None
            rows = samples.rows(np.arange(samples.size), None)
            parts.append(decoded(prepared, rows.source, rows.target))
        lines = zip(*((tmp_path / name).read_text().splitlines() for name in ("source", "target")), strict=True)
        assert Counter(parts[0]) + Counter(parts[1]) == Counter(lines)
        assert len(parts[1]) == 48
        held_out.append(parts[1])
    assert held_out[0] == held_out[1] != held_out[2]


def predicted(samples: Samples) -> list[int]:
    """All that is predicted, in the order of the text."""
    rows = samples.rows(np.arange(samples.size), None)
    return [int(id) for ids in rows.target for id in ids[1:]]


@pytest.mark.parametrize("tokenizer", ["characters", "bpe"])
def test_the_last_tenth_of_a_text_is_predicted_once(tokenizer: str, tmp_path: Path) -> None:
    vocabulary = {} if tokenizer == "bpe" else {"vocabulary": None}
    wishes = wishes_for(tmp_path, text=str(tmp_path / "source"), tokenizer=tokenizer, **vocabulary)
    prepared = prepare(wishes)
    text = (tmp_path / "source").read_text()
    held = prepared.validation_samples
    assert held is not None
    last = text[int(len(text) * 0.9) :]
    assert prepared.kit.target.decode(predicted(held)) == last
    assert prepared.kit.target.decode(predicted(prepared.training_samples)) == text[: len(text) - len(last)]
    # The windows do not overlap, and each is given what stands before it in its window and one token more.
    rows = held.rows(np.arange(held.size), None).target
    assert all(len(row) == 32 + 1 for row in rows[:-1])
    assert all(before[-1] == after[0] for before, after in zip(rows, rows[1:], strict=False))
    assert prepared.kit.target.decode([int(rows[0][0])]) == text[: len(text) - len(last)][-1:] or tokenizer == "bpe"
    # However they are put into batches.
    for budget in (32, 100, 10**6):
        batches = list(once(held, budget))
        assert sum(batch.predicted for batch in batches) == len(predicted(held))
        labels = Counter(int(id) for batch in batches for ids in batch.target for id in ids[1:])
        assert labels == Counter(predicted(held))


def test_validation_files_are_all_predicted_and_nothing_is_split_off(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("this is another text, much like the first\n" * 9)
    prepared = prepare(wishes_for(tmp_path, text=str(tmp_path / "source"), validation_text=str(tmp_path / "other")))
    assert prepared.validation_samples is not None
    assert prepared.kit.target.decode(predicted(prepared.training_samples)) == (tmp_path / "source").read_text()
    assert prepared.kit.target.decode(predicted(prepared.validation_samples)) == (tmp_path / "other").read_text()
    assert prepared.kit.run.data.validation_share == 0


def test_documents_held_out_are_whole(tmp_path: Path) -> None:
    prepared = prepare(wishes_for(tmp_path, text=str(tmp_path / "source"), documents="line"))
    tokenizer, found = prepared.kit.target, []
    for samples in (prepared.training_samples, prepared.validation_samples):
        assert samples is not None
        rows = samples.rows(np.arange(samples.size), None)
        starts = [row[0] == tokenizer.controls.start for row in rows.target]
        assert sum(starts) == samples.size
        text = tokenizer.decode(predicted(samples))
        found.append(text)
    everything = (tmp_path / "source").read_text().replace("\n", "")
    assert len(found[0]) + len(found[1]) == len(everything)
    assert Counter("".join(found)) == Counter(everything)


@pytest.mark.parametrize("what", ["blank", "long"])
@pytest.mark.parametrize("kind", ["pair", "lines"])
def test_data_that_gives_no_row_is_refused_before_anything_is_made(what: str, kind: str, tmp_path: Path) -> None:
    write_texts(tmp_path)
    useless = tmp_path / "useless"
    useless.write_text(("\n" if what == "blank" else "word " * 99 + "\n") * 50)
    files = ("source", "target") if kind == "pair" else ("text",)
    good = {name: str(tmp_path / ("target" if name == "target" else "source")) for name in files}
    bad = {name: str(useless) for name in files}
    documents = {} if kind == "pair" else {"documents": "line"}
    if (kind, what) == ("lines", "long"):
        return  # a long document is cut, not left out
    for wishes in (
        TrainWishes(**bad, **documents, context=32, out=str(tmp_path / "out")),
        TrainWishes(
            **good,
            **{f"validation_{name}": path for name, path in bad.items()},
            **documents,
            context=32,
            vocabulary=300,
        ),
    ):
        with pytest.raises(TextError, match="no row is left") as caught:
            prepare(wishes)
        assert caught.value.where == str(useless)
        assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_impossible_settings_are_found_before_the_tokenizer_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leftward.training import preparation

    monkeypatch.setattr(preparation, "_train_tokenizers", lambda *_: pytest.fail("minutes have gone"))
    wishes = wishes_for(tmp_path, text=str(tmp_path / "source"))
    for name, value in {
        "steps": 0,
        "dropout": 1.5,
        "heads": 3,
        "width": 10**9,
        "threads": 10**6,
        "warm_up": -1,
    }.items():
        with pytest.raises(LeftwardError) as caught:
            prepare(replace(wishes, **{name: value}))
        assert name.replace("_", "") in caught.value.where.replace("_", "").replace("-", "") or name == "width"


def test_a_number_that_no_computer_counts_to() -> None:
    with pytest.raises(SettingsError) as caught:
        TrainWishes(seed=2**70)
    assert caught.value.where == "--seed"


def test_a_run_does_not_depend_on_chance(tmp_path: Path) -> None:
    """What is prepared draws no random number of ours or of torch's."""
    import torch

    wishes = wishes_for(tmp_path, text=str(tmp_path / "source"))
    found = []
    for number in (1, 2):
        random.seed(number), np.random.seed(number), torch.manual_seed(number)
        prepared = prepare(wishes)
        found.append((prepared.kit.files(), prepared.origins, prepared.files))
    assert found[0] == found[1]
