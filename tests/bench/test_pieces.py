"""Batches are the same work for everybody: every row once, none over the budget, nothing lost on disk."""

from pathlib import Path

import numpy as np
import pytest
from bench.pieces import CONTROLS, Batch, Corpus, cut_batches, encode, fill, group_by_length, train_pieces


def random_rows(seed: int, count: int, longest: int = 40) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 100, random.integers(1, longest), dtype=np.int32) for _ in range(count)]


@pytest.mark.parametrize("window", [7, 64, 1000])
def test_every_row_is_in_one_batch_that_fits(window: int) -> None:
    sources, targets = random_rows(1, 301), random_rows(2, 301)
    batches = cut_batches(sources, targets, window=window, budget=160)
    assert sorted(np.concatenate(batches)) == list(range(301))
    for batch in batches:
        longest = max(max(len(sources[row]), len(targets[row])) + 1 for row in batch)
        assert len(batch) * longest <= 160


def test_wider_windows_fill_better() -> None:
    rows = random_rows(3, 400)
    fills = [fill(rows, cut_batches(rows, rows, window=window, budget=400)) for window in (10, 100, 400)]
    assert fills == sorted(fills)
    assert fills[0] < fills[-1] <= 1


def test_batches_are_no_batch_again() -> None:
    sources, targets = random_rows(4, 50), random_rows(5, 50)
    again = cut_batches(sources, targets, budget=200)
    for one, other in zip(cut_batches(sources, targets, budget=200), again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_groups_are_whole_and_of_like_length() -> None:
    rows = random_rows(6, 103)
    groups = group_by_length(rows, 10)
    assert [len(group) for group in groups] == [10] * 10
    spans = sorted((min(len(rows[row]) for row in group), max(len(rows[row]) for row in group)) for group in groups)
    assert all(left[1] <= right[0] for left, right in zip(spans, spans[1:], strict=False))


def test_a_corpus_comes_back_from_disk(tmp_path: Path) -> None:
    sources, targets = random_rows(7, 20), random_rows(8, 20)
    sources[3] = np.array([], np.int32)  # an empty line is a row, too
    corpus = Corpus(sources, targets, cut_batches(sources, targets, budget=100))
    corpus.save(tmp_path / "folder" / "pairs.npz")
    back = Corpus.load(tmp_path / "folder" / "pairs.npz")
    for name in ("sources", "targets", "batches"):
        for one, other in zip(getattr(corpus, name), getattr(back, name), strict=True):
            np.testing.assert_array_equal(one, other)
    first, later = back.batch(0), back.batch(len(back.batches))
    assert [row.tolist() for row in first.sources] == [row.tolist() for row in later.sources]


def test_target_tokens_count_ends_and_nothing_else() -> None:
    assert Batch(random_rows(9, 2), [np.arange(3), np.arange(5)]).target_tokens == 10


def test_pieces_give_the_text_back_and_no_text_gives_a_control() -> None:
    from tokenizers import Tokenizer

    lines = ["a man, a plan", "ein Mann mit Hut", "zwei Männer und zwei Hüte \N{TOP HAT}", "<end> <start>"]
    tokenizer = train_pieces(lines, 300)
    assert tokenizer == train_pieces(lines, 300)
    for line, row in zip(lines, encode(lines, tokenizer), strict=True):
        assert Tokenizer.from_str(tokenizer).decode((row - CONTROLS).tolist()) == line
        assert row.min() >= CONTROLS
