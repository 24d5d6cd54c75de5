"""Rows laid end to end: every token knows its row, its place and its source, and comes back where it was."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from leftward.packed import pack, step, unpack

rows = some.lists(some.lists(some.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=6)


@given(rows, some.data())
def test_every_token_knows_where_it_stands(rows, data):
    count = len(rows)
    names = data.draw(some.lists(some.integers(0, 50), min_size=count, max_size=count, unique=True))
    starts = data.draw(some.lists(some.integers(0, 9), min_size=count, max_size=count))
    reads = data.draw(some.lists(some.integers(0, 9), min_size=count, max_size=count))
    skipped = data.draw(some.lists(some.integers(0, 9), min_size=count, max_size=count))
    batch = pack(rows, names=names, starts=starts, reads=reads, uncounted=skipped)
    # One token after the other, in plain words.
    tokens = [
        (token, names[number], starts[number] + place, reads[number], place >= skipped[number])
        for number, row in enumerate(rows)
        for place, token in enumerate(row)
    ]
    ids, row, at, read, counts = map(list, zip(*tokens, strict=True))
    assert (batch.ids.tolist(), batch.row.tolist(), batch.at.tolist(), batch.reads.tolist()) == (ids, row, at, read)
    assert [part.tolist() for part in batch.places] == [row, at, read]
    assert batch.furthest == max(at)
    assert len(batch) == len(ids)
    if any(skipped):
        assert batch.counts.tolist() == counts
    else:
        assert batch.counts is None


@given(rows)
def test_by_default_rows_are_numbered_from_their_beginning_and_read_their_own_source(rows):
    batch = pack([np.array(row, np.int32) for row in rows])
    assert batch.ids.dtype == batch.row.dtype == batch.at.dtype == torch.long
    assert batch.row.tolist() == batch.reads.tolist() == [number for number, row in enumerate(rows) for _ in row]
    assert batch.at.tolist() == [place for row in rows for place in range(len(row))]
    assert batch.segments.lengths.tolist() == [len(row) for row in rows]
    assert not batch.segments.starts.any()
    assert batch.counts is None


@given(rows)
def test_unpack_is_the_way_back(rows):
    batch = pack(rows)
    assert [part.tolist() for part in unpack(batch.ids, batch)] == rows
    wide = torch.randn(len(batch), 3)
    assert torch.equal(torch.cat(unpack(wide, batch)), wide)


@pytest.mark.parametrize("rows", [[[1], [], [2]], [[]]])
def test_an_empty_row_is_refused_by_number(rows):
    with pytest.raises(ValueError, match=f"row {rows.index([])} has no token"):
        pack(rows)


def test_a_row_named_twice_is_refused():
    # Its two runs would stand in different rectangles, and not see each other.
    with pytest.raises(ValueError, match="7"):
        pack([[1], [2, 3], [4]], names=[7, 5, 7])


@given(some.integers(1, 5), some.integers(1, 4), some.data())
def test_a_step_is_one_token_in_every_slot(sources, share, data):
    slots = sources * share
    at = data.draw(some.lists(some.integers(0, 9), min_size=slots, max_size=slots))
    batch = step(torch.arange(slots) + 100, torch.tensor(at), furthest=9, sources=sources)
    assert batch.ids.tolist() == [100 + slot for slot in range(slots)]
    assert batch.row.tolist() == list(range(slots))
    assert batch.at.tolist() == at
    assert batch.reads.tolist() == [slot // share for slot in range(slots)]
    assert (batch.furthest, batch.segments, len(batch)) == (9, None, slots)
    assert [part.tolist() for part in unpack(batch.ids, batch)] == [[100 + slot] for slot in range(slots)]


def test_without_sources_a_slot_reads_its_own():
    batch = step(torch.tensor([5, 6, 7]), torch.zeros(3, dtype=torch.long), furthest=0)
    assert batch.reads.tolist() == [0, 1, 2]


def test_other_tokens_in_the_same_rows():
    batch = pack([[1, 2], [3]], starts=[4, 0], reads=[1, 1], uncounted=[1, 0])
    other = batch.with_ids(torch.tensor([7, 8, 9]))
    assert other.ids.tolist() == [7, 8, 9]
    assert batch.ids.tolist() == [1, 2, 3]
    assert all(torch.equal(one, two) for one, two in zip(batch.places, other.places, strict=True))
    assert other.segments is batch.segments
    assert other.counts is batch.counts
    assert other.furthest == 5


def test_everything_moves_to_another_device():
    moved = pack([[1, 2], [3]], uncounted=[1, 0]).to("meta")
    tensors = (moved.ids, *moved.places, moved.counts)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert pack([[1]]).to("meta").counts is None
