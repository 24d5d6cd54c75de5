"""Rows laid into rectangles and back: every token once, nothing computed in vain without need, gradients whole."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from leftward.model import rectangles, sight
from leftward.model.attention import fused, plain
from leftward.model.exact import exact
from leftward.model.heads import Heads
from leftward.model.rectangles import CELLS_PER_RECTANGLE, Meeting, divide
from leftward.packed import pack, step

lengths = some.integers(1, 120)
pairs = some.lists(some.tuples(lengths, lengths), min_size=1, max_size=60)


def cells(queries, keys, groups):
    return sum(len(group) * queries[group].max() * keys[group].max() for group in groups)


@given(pairs)
def test_every_row_is_in_one_rectangle(pairs):
    queries, keys = np.array(pairs).T
    for groups in (divide(queries, keys), divide(queries, queries)):
        assert sorted(np.concatenate(groups).tolist()) == list(range(len(pairs)))


@given(pairs)
def test_every_cut_saves_more_than_it_costs(pairs):
    queries, keys = np.array(pairs).T
    one = cells(queries, keys, [np.arange(len(pairs))])
    groups = divide(queries, keys)
    assert cells(queries, keys, groups) + CELLS_PER_RECTANGLE * (len(groups) - 1) <= one


@given(pairs)
def test_no_cut_is_left_that_would_pay(pairs):
    queries, keys = np.array(pairs).T
    for group in divide(queries, keys):
        whole = cells(queries, keys, [group])
        for side in (queries, keys):
            order = group[np.argsort(side[group], kind="stable")]
            for place in range(1, len(group)):
                assert cells(queries, keys, [order[:place], order[place:]]) + CELLS_PER_RECTANGLE >= whole


def test_very_different_rows_do_not_share_a_rectangle():
    random = np.random.default_rng(0)
    sizes = random.permutation(np.repeat([3, 30, 100], 20))
    assert {tuple(np.unique(sizes[group])) for group in divide(sizes, sizes)} == {(3,), (30,), (100,)}


@given(pairs)
def test_exact_rectangles_hold_one_padded_size(pairs):
    queries, keys = np.array(pairs).T
    with exact():
        groups = divide(queries, keys)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(pairs)))
    for group in groups:
        assert len(set(-(-queries[group] // 8))) == len(set(-(-keys[group] // 64))) == 1


def some_rows(random, count, longest):
    return [[1] * int(length) for length in random.integers(1, longest, count)]


def own_meeting(random, longest=40):
    batch = pack(some_rows(random, 7, longest), names=random.permutation(7).tolist(), starts=[0, 3, 0, 0, 1, 0, 0])
    return Meeting(batch, batch)


def each_once_meeting(random, longest=40):
    source = pack(some_rows(random, 5, longest), names=[3, 1, 0, 4, 2])
    return Meeting(pack(some_rows(random, 5, longest), reads=[0, 1, 2, 3, 4]), source)


def unread_meeting(random, longest=40):
    """No source is read twice, and source 1 by nobody."""
    source = pack(some_rows(random, 4, longest), names=[3, 1, 0, 2])
    return Meeting(pack(some_rows(random, 3, longest), reads=[2, 3, 0]), source)


def shared_meeting(random, longest=40):
    """Source 8 is read by three rows, 2 by two, 4 by one and 6 by none."""
    source = pack(some_rows(random, 4, longest), names=[8, 2, 6, 4])
    return Meeting(pack(some_rows(random, 6, longest), reads=[2, 8, 8, 4, 2, 8]), source)


each_meeting = pytest.mark.parametrize("make", [own_meeting, each_once_meeting, unread_meeting, shared_meeting])
heads_of_every_kind = pytest.mark.parametrize("heads", [Heads(4, 4, 3), Heads(4, 2, 1), Heads(3, 1, 2)])


@pytest.fixture
def several(monkeypatch):
    """A few short rows make several rectangles."""
    monkeypatch.setattr(rectangles, "CELLS_PER_RECTANGLE", 2)


@each_meeting
@pytest.mark.usefixtures("several")
def test_rectangles_hold_every_row_with_what_it_looks_at(make):
    meeting = make(np.random.default_rng(1))
    target, source = meeting.queries.segments, meeting.keys.segments
    assert len(meeting.shapes) > 1
    found = []
    for (rows, width, depth), (query, key) in zip(meeting.shapes, meeting.places, strict=True):
        assert query.row.shape == query.at.shape == query.reads.shape == (rows, width)
        assert key.row.shape == key.at.shape == key.reads.shape == (rows, depth)
        for number in range(rows):
            (name,) = query.row[number].unique().tolist()
            found.append(name)
            of = target.rows.tolist().index(name)
            begin, length = target.starts[of], target.lengths[of]
            # Beyond its end a row of queries repeats its last token.
            expected = [begin + min(column, length - 1) for column in range(width)]
            assert query.at[number].tolist() == expected
            other = name if meeting.is_own else target.reads[of]
            count = source.lengths[source.rows.tolist().index(other)]
            assert key.row[number].tolist() == [other] * count + [sight.NOBODY] * (depth - count)
    assert sorted(found) == sorted(target.rows.tolist())


def flat_places(batch):
    return torch.stack([batch.row, batch.at], dim=1).double()


@each_meeting
@heads_of_every_kind
@pytest.mark.parametrize("arithmetic", [nullcontext, exact])
@pytest.mark.usefixtures("several")
def test_every_cell_gets_its_own_token_and_head(make, heads, arithmetic):
    with arithmetic():
        meeting = make(np.random.default_rng(2))

    def label(batch, first, count):
        """(tokens, heads, D) numbers that name row, position and head."""
        at = flat_places(batch) @ torch.tensor([10_000.0, 100.0], dtype=torch.float64)
        return (at[:, None] + torch.arange(first, first + count))[..., None].expand(-1, -1, heads.size)

    def expected(place, first, count):
        at = place.row * 10_000 + place.at * 100
        return (at[:, None] + torch.arange(first, first + count)[:, None]).double()

    if meeting.is_own:
        table = label(meeting.queries, 0, heads.query + 2 * heads.key)
        queries, keys, values = meeting.spread_own(table, heads)
    else:
        queries = meeting.spread_queries(label(meeting.queries, 0, heads.query), heads)
        table = label(meeting.keys, heads.query, 2 * heads.key)
        keys, values = meeting.spread_keys(table, heads)
    for number, (query, key) in enumerate(meeting.places):
        rows, width, depth = meeting.shapes[number]
        if arithmetic is exact:
            assert (width % 8, depth % 64) == (0, 0)
        assert queries[number].shape == (rows, heads.key, heads.query // heads.key, width, heads.size)
        seen = queries[number].flatten(1, 2)
        assert torch.equal(seen, expected(query, 0, heads.query)[..., None].expand_as(seen))
        real = (key.row != sight.NOBODY)[:, None].expand(-1, heads.key, -1)
        for part, first in ((keys, heads.query), (values, heads.query + heads.key)):
            assert part[number].shape == (rows, heads.key, depth, heads.size)
            wanted = expected(key, first, heads.key)[real]
            assert torch.equal(part[number][real], wanted[:, None].expand(-1, heads.size))


@each_meeting
@heads_of_every_kind
@pytest.mark.usefixtures("several")
def test_what_is_spread_is_collected_again(make, heads):
    meeting = make(np.random.default_rng(3))
    table = torch.randn(len(meeting.queries), heads.query, heads.size)
    spread = meeting.spread_queries(table, heads)
    assert torch.equal(meeting.collect(spread, heads), table.flatten(1))


def attend(meeting, heads, rule, path, *tables):
    if meeting.is_own:
        queries, keys, values = meeting.spread_own(tables[0], heads)
    else:
        queries = meeting.spread_queries(tables[0], heads)
        keys, values = meeting.spread_keys(tables[1], heads)
    matrices = meeting.matrices(rule, torch.float64)
    mixed = []
    for parts in zip(queries, keys, values, matrices, strict=True):
        if path == "plain":
            mixed.append(plain(*parts, None, 0.7)[0])
        else:
            triangle = sight.is_kernel_triangle(rule, same_places=meeting.same_places)
            mixed.append(fused(*parts[:3], None if triangle else parts[3], None, 0.7))
    return meeting.collect(mixed, heads)


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("rule", [sight.Leftward(), sight.Leftward(2), sight.WholeRow()], ids=str)
@pytest.mark.parametrize("heads", [Heads(1, 1, 2), Heads(2, 1, 2)])
@pytest.mark.usefixtures("several")
def test_gradients_of_a_row_looking_at_itself(path, rule, heads):
    torch.manual_seed(0)
    batch = pack([[1] * length for length in (5, 1, 2, 4)])
    meeting = Meeting(batch, batch)
    assert len(meeting.shapes) > 1
    table = torch.randn(len(batch), heads.query + 2 * heads.key, heads.size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda one: attend(meeting, heads, rule, path, one), table)


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("make", [each_once_meeting, unread_meeting, shared_meeting])
@pytest.mark.usefixtures("several")
def test_gradients_of_rows_looking_at_sources(path, make):
    torch.manual_seed(0)
    heads = Heads(2, 1, 2)
    meeting = make(np.random.default_rng(8), longest=6)
    assert len(meeting.shapes) > 1
    queries = torch.randn(len(meeting.queries), 2, 2, dtype=torch.float64, requires_grad=True)
    sources = torch.randn(len(meeting.keys), 2, 2, dtype=torch.float64, requires_grad=True)

    def both(one, other):
        return attend(meeting, heads, sight.SameSource(), path, one, other)

    assert torch.autograd.gradcheck(both, (queries, sources))


@pytest.mark.usefixtures("several")
def test_a_source_nobody_reads_has_a_gradient_of_zero():
    torch.manual_seed(0)
    meeting = shared_meeting(np.random.default_rng(5))
    queries = torch.randn(len(meeting.queries), 1, 2, dtype=torch.float64)
    sources = torch.randn(len(meeting.keys), 2, 2, dtype=torch.float64, requires_grad=True)
    attend(meeting, Heads(1, 1, 2), sight.SameSource(), "plain", queries, sources).pow(2).sum().backward()
    values = sources.grad[:, 1]
    unread = meeting.keys.row == 6
    assert unread.any()
    assert not sources.grad[unread].any()
    assert values[~unread].all()


def test_numbers_and_matrices_are_made_once():
    meeting = own_meeting(np.random.default_rng(6))
    made = meeting.matrices(sight.Leftward(), torch.float32)
    assert meeting.matrices(sight.Leftward(), torch.float32) is made
    assert meeting.matrices(sight.Leftward(3), torch.float32) is not made
    assert meeting.matrices(sight.Leftward(), torch.float64)[0].dtype == torch.float64


def test_the_kernels_triangle_is_allowed_for_whole_rows_only():
    whole = pack([[1, 2], [3]])
    late = pack([[1, 2], [3]], starts=[0, 4])
    assert Meeting(whole, whole).same_places
    assert not Meeting(late, late).same_places
    assert not Meeting(whole, pack([[1, 2], [3]])).same_places


def test_a_source_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="7"):
        Meeting(pack([[1], [2]], reads=[0, 7]), pack([[3], [4]]))


def test_a_decoding_step_is_refused():
    one = step(torch.tensor([1]), torch.tensor([0]), furthest=0)
    with pytest.raises(TypeError, match="cache"):
        Meeting(one, one)
