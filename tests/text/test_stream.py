"""Every sample once an epoch, on from any place as if never stopped, and the same for any number of processes."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.errors import SettingsError, TextError
from leftward.text.corpus import Documents, Lines
from leftward.text.samples import Articles, Book, Counts, Ids, Keys, Numbers, Pairs, Rows, Samples
from leftward.text.stream import Batch, Place, Stream, once
from leftward.text.vocabulary import train_bpe, train_characters


class Numbered:
    """Pairs that hold nothing but their own number; some are left out, as an over-long pair is."""

    def __init__(self, size: int, mark: int = 0, missing: int = 0) -> None:
        self.size, self.volume, self.context = size, size, 12
        self._mark, self._missing = mark, missing

    def rows(self, numbers: Numbers, keys: Keys | None) -> Rows:  # noqa: ARG002  nothing is cut
        kept = [number for number in numbers if number >= self._missing]
        rows = [np.array([self._mark, *[number] * (1 + number * 7 % 11), 0], np.int32) for number in kept]
        return Rows(None, rows, Counts(samples=len(numbers), rows=len(rows), long=len(numbers) - len(rows)))


def name(ids: Ids) -> tuple[int, int]:
    return int(ids[0]), int(ids[1])


def flat(batch: Batch) -> tuple[object, ...]:
    source = None if batch.source is None else [ids.tolist() for ids in batch.source]
    return source, [ids.tolist() for ids in batch.target], batch.place, batch.after, batch.counts


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 100), st.integers(12, 80), st.integers(0, 5))
def test_every_sample_once_an_epoch(size: int, window: int, budget: int, seed: int) -> None:
    stream = Stream([Numbered(size)], budget=budget, seed=seed, window=window)
    _, epoch, number = stream.locate(np.arange(3 * size))
    assert np.array_equal(epoch, np.repeat([0, 1, 2], size))
    for part in np.split(number, 3):
        assert np.array_equal(np.sort(part), np.arange(size))
    # What is handed out, window by window, is what was located, whole.
    windows: dict[int, Counter[int]] = {}
    for batch in stream.batches():
        if batch.place.window * stream.window_size >= 2 * size:
            break
        assert batch.predicted <= budget
        windows.setdefault(batch.place.window, Counter()).update(name(ids)[1] for ids in batch.target)
    for which, found in windows.items():
        assert found == Counter(number[which * stream.window_size :][: stream.window_size].tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 200), st.integers(1, 60), st.integers(0, 5), st.integers(0, 40))
def test_going_on_from_any_place_is_never_having_stopped(size: int, window: int, seed: int, at: int) -> None:
    corpora = [Numbered(size), Numbered(7, mark=1, missing=3)]
    whole = list(islice(Stream(corpora, budget=40, seed=seed, window=window).batches(), at + 20))
    again = Stream(corpora, budget=40, seed=seed, window=window)
    assert list(map(flat, islice(again.batches(whole[at].after), 19))) == list(map(flat, whole[at + 1 :]))
    assert list(map(flat, islice(again.batches(whole[at].place), 3)))[1:] == list(map(flat, whole[at + 1 : at + 3]))
    assert all(one.after == other.place or other.place.batch == 0 for one, other in pairwise(whole))
    # Counted on the way: stopping and going on counts nothing twice and forgets nothing.
    samples = sum((batch.counts for batch in whole), Counts())
    assert samples.samples == (whole[-1].place.window + 1) * again.window_size
    assert samples.samples == samples.rows + samples.long


def test_seeds_and_epochs_differ() -> None:
    orders = [Stream([Numbered(500)], budget=40, seed=seed).locate(np.arange(1000))[2] for seed in (1, 2)]
    assert not np.array_equal(*orders)
    assert not np.array_equal(orders[0][:500], orders[0][500:])
    first, second = (
        [flat(batch)[1] for batch in islice(Stream([Numbered(500)], budget=40, seed=seed).batches(), 20)]
        for seed in (1, 2)
    )
    assert first != second


def test_batches_of_a_window_are_shuffled_but_each_is_of_one_length() -> None:
    batches = list(islice(Stream([Numbered(4000)], budget=200, seed=1).batches(), 60))
    means = [np.mean([len(ids) for ids in batch.target]) for batch in batches]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.4
    assert np.mean([np.ptp([len(ids) for ids in batch.target]) for batch in batches]) < 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 30))
def test_shares_are_the_whole(world: int, at: int) -> None:
    batch = next(islice(Stream([Numbered(90)], budget=60, seed=3).batches(), at, None))
    shares = [batch.share(rank, world) for rank in range(world)]
    rows = sorted(tuple(ids.tolist()) for share in shares for ids in share.target)
    assert rows == sorted(tuple(ids.tolist()) for ids in batch.target)
    assert sum(share.predicted for share in shares) == batch.predicted
    counts = [len(share.target) for share in shares]
    assert max(counts) - min(counts) <= 1


def test_corpora_mix_by_weight() -> None:
    corpora = [Numbered(100, mark=1), Numbered(50, mark=2), Numbered(1000, mark=3)]
    stream = Stream(corpora, budget=60, seed=1, weights=[2, 1, 1], window=400)
    seen = Counter(name(ids) for batch in islice(stream.batches(), 400) for ids in batch.target)
    shares = Counter[int]()
    for (mark, _), count in seen.items():
        shares[mark] += count
    total = sum(shares.values())
    assert [round(shares[mark] / total, 2) for mark in (1, 2, 3)] == [0.5, 0.25, 0.25]
    for mark, size in ((1, 100), (2, 50), (3, 1000)):
        times = [seen[mark, number] for number in range(size)]
        assert max(times) - min(times) <= 2  # the windows in hand cut an epoch


def test_rows_of_one_length_come_from_all_corpora() -> None:
    texts = [letter * 5000 for letter in "ab"]
    tokenizer = train_characters(texts)
    books = [Book(text, tokenizer, 10) for text in texts]
    mixed = 0
    for batch in islice(Stream(books, budget=100, seed=1).batches(), 100):
        mixed += len({int(ids[1]) for ids in batch.target}) == 2
    assert mixed > 90


def test_pairs_keep_together(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    numbers = [f"{number} " * (1 + number % 9) for number in range(2000)]
    source.write_text("\n".join(numbers))
    target.write_text("\n".join(f"{line}= {line}" for line in numbers))
    tokenizer = train_bpe(numbers, 600)
    pairs = Pairs(Lines(source), Lines(target), (tokenizer, tokenizer), context=60)
    seen = Counter[str]()
    for batch in Stream([pairs], budget=300, seed=1).batches():
        if batch.place.window:
            break
        halves = [batch.share(rank, 2) for rank in (0, 1)]
        rows = [pair for half in halves for pair in zip(half.source or [], half.target, strict=True)]
        for s, t in rows:
            text = tokenizer.decode(s)
            assert tokenizer.decode(t) == f"{text}= {text}"
            seen[text] += 1
    assert seen == Counter(numbers)


def test_validation_is_each_sample_once_and_always_alike(tmp_path: Path) -> None:
    text = "".join(chr(97 + number * number % 26) for number in range(20_000))
    tokenizer = train_characters([text])
    book = Book(text, tokenizer, 64, given=3)
    batches = list(once(book, 1000))
    assert sum(batch.predicted for batch in batches) == 20_000
    assert [flat(batch) for batch in once(book, 1000)] == [flat(batch) for batch in batches]
    path = tmp_path / "text"
    path.write_text("\n\n".join(text[at : at + 3] for at in range(0, 20_000, 2)))
    articles = Articles(Documents(Lines(path), "blank"), tokenizer, 8)
    counts = sum((batch.counts for batch in once(articles, 1000)), Counts())
    assert counts == Counts(samples=10_000, rows=10_000)


def test_a_window_is_no_more_than_an_epoch_nor_than_some_megabytes(tmp_path: Path) -> None:
    assert Stream([Numbered(500)], budget=12, seed=1).window_size == 500
    assert Stream([Numbered(50_000)], budget=12, seed=1).window_size == 8192
    path = tmp_path / "long"
    path.write_text("\n".join(["word " * 20_000] * 200))
    articles = Articles(Documents(Lines(path), "line"), train_bpe([], 258), 512)
    assert Stream([articles], budget=512, seed=1).window_size == 83


def test_text_without_a_row_ends_with_a_sentence() -> None:
    with pytest.raises(TextError, match="of 112 samples 0 are blank and 112 are longer"):
        next(Stream([Numbered(50, missing=50)], budget=40, seed=1, window=16).batches())
    found = list(islice(Stream([Numbered(50, missing=49)], budget=40, seed=1, window=4).batches(), 5))
    assert [name(ids) for batch in found for ids in batch.target] == [(0, 49)] * 5
    assert sum((batch.counts for batch in found), Counts()).rows == 5


@pytest.mark.parametrize(
    ("corpora", "weights"),
    [([Numbered(5)], [1.0, 2.0]), ([Numbered(5)], [0.0]), ([Numbered(5), Numbered(5)], [1.0])],
)
def test_impossible_weights_are_refused(corpora: list[Samples], weights: list[float]) -> None:
    with pytest.raises(SettingsError, match="weights"):
        Stream(corpora, budget=40, seed=1, weights=weights)


def test_a_context_must_fit_in_a_batch() -> None:
    with pytest.raises(SettingsError, match="context of 12 does not fit in batches of 11"):
        Stream([Numbered(5)], budget=11, seed=1)
    with pytest.raises(SettingsError, match="does not fit"):
        next(once(Numbered(5), 11))


def test_a_book_streams_with_a_new_cut_each_epoch() -> None:
    text = "".join(chr(97 + number * number % 26) for number in range(3000))
    tokenizer = train_characters([text])
    stream = Stream([Book(text, tokenizer, 32)], budget=320, seed=1)
    lengths: list[set[int]] = []
    for epoch in range(3):
        batches = [b for b in islice(stream.batches(Place(epoch)), 40) if b.place.window == epoch]
        rows = [ids for batch in batches for ids in batch.target]
        assert sum(len(ids) - 1 for ids in rows) == 3000
        lengths.append({len(ids) for ids in rows})
    assert lengths[0] != lengths[1] or lengths[1] != lengths[2]


def test_a_corpus_of_captions_is_read_and_streamed_in_seconds(tmp_path: Path) -> None:
    words = [f"{a}{b}{c}" for a in ("ma", "ko", "stri") for b in ("lu", "ben", "ta") for c in ("n", "rem", "us", "")]
    chance = np.random.default_rng(1)
    paths = [tmp_path / "s", tmp_path / "t"]
    for path in paths:
        path.write_text("\n".join(" ".join(chance.choice(words, chance.integers(6, 20))) for _ in range(29_000)))
    start = time.perf_counter()
    source, target = map(Lines, paths)
    tokenizer = train_bpe([*source, *target], 2000)
    stream = Stream([Pairs(source, target, (tokenizer, tokenizer), 128)], budget=4096, seed=1)
    rows = 0
    for batch in stream.batches():
        if batch.place.window == 3:
            break
        rows += len(batch.target)
    assert rows == 3 * 8192
    assert time.perf_counter() - start < 15  # 1.5 s on two cores with nothing else to do
