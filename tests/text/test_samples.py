"""Rows are whole, stretches lose and repeat nothing, and what is left out is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.errors import TextError
from leftward.text.corpus import Documents, Lines
from leftward.text.order import scramble
from leftward.text.samples import Articles, Book, Counts, Pairs, Samples, split_end
from leftward.text.vocabulary import train_bpe, train_characters

LETTERS = train_characters(["abcdefghij \n"])
START, END = LETTERS.controls.start, LETTERS.controls.end


def lines_of(path: Path, lines: list[str]) -> Lines:
    path.write_text("\n".join(lines) + "\n", newline="\n")
    return Lines(path)


def all_rows(samples: Samples, key: int | None) -> list[list[int]]:
    numbers = np.arange(samples.size)
    keys = None if key is None else np.repeat(scramble(key), samples.size)
    return [ids.tolist() for ids in samples.rows(numbers, keys).target]


def joined(rows: list[list[int]]) -> list[int]:
    """Stretches back in one piece: each begins with the last id of the one before."""
    whole = list(rows[0])
    for row in rows[1:]:
        assert row[0] == whole[-1]
        whole += row[1:]
    return whole


def test_pairs_are_whole_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    source = lines_of(tmp_path / "s", ["abc", "", "a b", "abcdefgh", "ab", "a?!", "abcdefg"])
    target = lines_of(tmp_path / "t", ["cba", "a", " \u2028", "a", "abcdefgh", "j?", "gfedcba"])
    other = train_bpe(["abc"], 258)
    pairs = Pairs(source, target, (LETTERS, other), context=8)
    rows = pairs.rows(np.array([6, 5, 4, 3, 2, 1, 0]), None)
    assert rows.counts == Counts(samples=7, rows=3, empty=2, long=2, unknown=2)
    assert rows.source is not None
    texts = [(LETTERS.decode(s), other.decode(t)) for s, t in zip(rows.source, rows.target, strict=True)]
    assert texts == [("abcdefg", "gfedcba"), ("a\ufffd\ufffd", "j?"), ("abc", "cba")]
    for s, t in zip(rows.source, rows.target, strict=True):
        assert s.tolist() == [*LETTERS.encode(LETTERS.decode(s[:-1]).replace("\ufffd", "?")), END]
        assert (t[0], t[-1]) == (other.controls.start, other.controls.end)
        assert s.dtype == t.dtype == np.int32
    chosen = Pairs(source, target, (LETTERS, other), context=8, chosen=np.array([4, 6]))
    assert chosen.size == 2
    assert LETTERS.decode((chosen.rows(np.array([1]), None).source or [])[0]) == "abcdefg"


@settings(max_examples=300, deadline=None)
@given(st.text("abcdefghij \n", min_size=1, max_size=200), st.integers(1, 30), st.integers(0, 50))
def test_a_book_is_predicted_once_a_pass(text: str, context: int, key: int) -> None:
    for ends, given_id in ((True, None), (False, None), (False, 3)):
        book = Book(text, LETTERS, context, given=given_id, ends=ends)
        first = START if given_id is None else given_id
        whole = [first, *LETTERS.encode(text), *([END] if ends else [])]
        for rows in (all_rows(book, key), all_rows(book, None)):
            assert joined(rows) == whole
            assert all(2 <= len(row) <= context + 1 for row in rows)
        assert all(len(row) == context + 1 for row in all_rows(book, None)[:-1])


def test_a_book_is_cut_elsewhere_each_epoch() -> None:
    book = Book("abcdefghij" * 20, LETTERS, 16)
    firsts = {len(all_rows(book, key)[0]) for key in range(300)}
    assert firsts == set(range(2, 18))


def test_a_short_book_is_not_cut() -> None:
    assert all_rows(Book("abc", LETTERS, 4, ends=True), 7) == [[START, *LETTERS.encode("abc"), END]]
    with pytest.raises(TextError, match="no text"):
        Book("", LETTERS, 4)


def test_the_last_tenth_is_given_one_character_more() -> None:
    text = "abcdefghij" * 20
    before, after = split_end(text, 0.1)
    assert (before + after, len(after)) == (text, 20)
    book = Book(before, LETTERS, 8)
    rows = all_rows(Book(after, LETTERS, 8, given=int(book.ids[-1])), None)
    assert LETTERS.decode(joined(rows)) == "j" + after
    assert [len(row) - 1 for row in rows] == [8, 8, 4]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcdefghij ", max_size=60), min_size=1, max_size=20), st.integers(2, 30), st.integers(0, 9))
def test_articles_start_and_end(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], context: int, key: int
) -> None:
    documents = Documents(lines_of(tmp_path_factory.getbasetemp() / "articles", texts), "line")
    articles = Articles(documents, LETTERS, context)
    kept = [text for text in texts if text.strip()]
    long = [text for text in kept if len(text) + 1 > context]
    for some in (scramble(key, np.arange(len(texts))), None):
        found = articles.rows(np.arange(len(texts)), some)
        documents_again: list[list[list[int]]] = []
        for row in found.target:
            if row[0] == START:
                documents_again.append([])
            documents_again[-1].append(row.tolist())
            assert len(row) <= context + 1
        assert [joined(rows) for rows in documents_again] == [[START, *LETTERS.encode(t), END] for t in kept]
        expected = Counts(len(texts), len(found.target), len(texts) - len(kept), split=len(long))
        assert found.counts == expected


def test_documents_are_cut_each_in_its_own_place(tmp_path: Path) -> None:
    documents = Documents(lines_of(tmp_path / "same", ["abcdefghij" * 9] * 50), "line")
    rows = all_rows(Articles(documents, LETTERS, 16), key=1)
    assert len({len(row) for row in rows if row[0] == START}) > 10


def test_unknown_characters_are_counted_once() -> None:
    book = Book("ab?!" * 10, LETTERS, 4)
    assert book.rows(np.arange(book.size), None).counts == Counts(book.size, 10, split=1, unknown=20)
