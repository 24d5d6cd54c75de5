"""The cache: what it refuses, what it forgets, what it never sees again, and that it is allocated once."""

import numpy as np
import pytest
import torch
from tests.laws.models import a_model

from leftward.errors import CacheError
from leftward.model import sight
from leftward.model.cache import Cache
from leftward.packed import pack, step, unpack
from leftward.settings import Stack


def decoder_only(window=0, **changes):
    stack = Stack(layers=2, heads=2, feed_forward=24, window=window)
    return a_model(encoder=None, decoder=stack, **changes)


def random_rows(seed, *lengths, vocabulary=30):
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary, length) for length in lengths]


def take_step(model, cache, ids, at, sources=0):
    """One token in every slot; the states."""
    batch = step(torch.tensor(ids), torch.tensor(at), furthest=max(at), sources=sources)
    return model(batch, cache=cache)


def one_pass(model, row, source=None):
    return model(pack([row]), None if source is None else pack([source]))


def equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_it_refuses_to_work_while_gradients_are_recorded():
    model = decoder_only()
    cache = model.allocate(slots=1, capacity=4)
    with pytest.raises(CacheError, match="gradients"):
        take_step(model, cache, [1], [0])
    with torch.no_grad():
        take_step(model, cache, [1], [0])


@torch.no_grad()
def test_a_row_ends_with_the_capacity():
    model = decoder_only()
    cache = model.allocate(slots=2, capacity=5)
    model(pack([[1] * 5, [2] * 3]), cache=cache)
    with pytest.raises(CacheError, match="position 5 .* 5 tokens"):
        take_step(model, cache, [1, 1], [5, 3])
    with pytest.raises(CacheError, match="position 6"):
        model(pack([[1] * 7]), cache=cache)


def test_slots_that_cannot_share_the_sources_are_refused():
    model = a_model()
    with pytest.raises(CacheError, match="5 slots cannot share 2 sources"):
        model.allocate(slots=5, capacity=4, sources=2, source_capacity=4)


@torch.no_grad()
def test_a_source_that_does_not_fit_is_refused():
    model = a_model(context=200)
    cache = model.allocate(slots=1, capacity=4, sources=1, source_capacity=10)
    room = cache.across[0].shape[3]
    with pytest.raises(CacheError, match=f"{room + 1} tokens does not fit into room for {room}"):
        model.read(pack([[1] * (room + 1)]), cache)
    model.read(pack([[1] * room]), cache)


@torch.no_grad()
def test_a_cache_without_room_for_sources_is_refused():
    model = a_model()
    cache = model.allocate(slots=1, capacity=4)
    with pytest.raises(CacheError, match="no room for sources"):
        take_step(model, cache, [1], [0], sources=1)
    with pytest.raises(CacheError, match="room for 0"):
        model.read(pack([[1]]), cache)


@torch.no_grad()
def test_writing_before_any_source_was_read_is_refused():
    model = a_model()
    cache = model.allocate(slots=1, capacity=4, sources=1, source_capacity=4)
    with pytest.raises(CacheError):
        take_step(model, cache, [1], [0], sources=1)


def test_it_is_as_large_as_it_says():
    model = a_model(decoder=Stack(layers=3, heads=4, key_heads=2, feed_forward=8, window=(0, 5, 100)), width=20)
    cache = model.allocate(slots=6, capacity=130, sources=2, source_capacity=65, chunk=70)
    assert [layer.shape for layer in cache.own] == [(2, 6, 2, 130, 5), (2, 6, 2, 74, 5), (2, 6, 2, 130, 5)]
    assert [layer.shape for layer in cache.across] == [(2, 2, 2, 65, 5)] * 3
    assert all(not layer.any() for layer in cache.own + cache.across)
    assert all((ring.at == sight.UNREACHABLE).all() for ring in cache.rings)
    held = [*cache.own, *cache.across, cache.source_row, *(ring.at for ring in cache.rings)]
    assert cache.bytes == sum(part.untyped_storage().nbytes() for part in held)


def test_layers_of_one_window_share_their_positions():
    model = decoder_only()
    cache = Cache.allocate(model.settings, slots=1, capacity=4)
    assert len(cache.rings) == 1
    mixed = decoder_only(window=(0, 3))
    assert [ring.window for ring in mixed.allocate(slots=1, capacity=4).rings] == [None, 3]


@torch.no_grad()
def test_it_is_allocated_once_and_written_in_place():
    model = a_model(decoder=Stack(layers=2, heads=2, feed_forward=24, window=(0, 3)))
    cache = model.allocate(slots=2, capacity=30, sources=2, source_capacity=9, chunk=4)

    def addresses():
        parts = [*cache.own, *cache.across, cache.source_row, *(ring.at for ring in cache.rings)]
        return [part.data_ptr() for part in parts]

    before = addresses()
    model.read(pack(random_rows(0, 5, 9)), cache)
    model(pack(random_rows(1, 4, 2)), cache=cache)
    for at in range(4, 30):
        take_step(model, cache, [1, 2], [at, at - 2], sources=2)
        cache.reorder(torch.tensor([1, 0]))
    cache.keep(torch.tensor([True, False]))
    assert addresses() == before


@torch.no_grad()
def test_filled_is_a_bound_on_the_cells_in_use():
    model = decoder_only(window=(0, 3), context=200)
    cache = model.allocate(slots=3, capacity=150, chunk=7)
    assert cache.filled == 0
    model(pack(random_rows(0, 7, 2), names=[0, 2]), cache=cache)
    assert cache.filled == 7
    take_step(model, cache, [1, 1, 1], [7, 0, 2])
    assert cache.filled == 8
    model(pack([[1]], names=[1]), cache=cache)
    assert cache.filled == 8  # a short row does not hide the long ones
    for layer, ring in zip(cache.own, cache.ring_of, strict=True):
        assert not layer[..., cache.filled :, :].any()
        assert (ring.at[:, cache.filled :] == sight.UNREACHABLE).all()
        assert (ring.at[0, : cache.filled] == torch.arange(8)).all()


@torch.no_grad()
def test_reorder_moves_what_was_written_and_leaves_the_sources():
    model = a_model(decoder=Stack(layers=2, heads=2, feed_forward=24, window=(0, 3)), context=200)
    cache = model.allocate(slots=4, capacity=180, sources=2, source_capacity=9, chunk=9)
    model.read(pack(random_rows(0, 5, 9)), cache)
    model(pack(random_rows(1, 4, 2, 9, 1), reads=[0, 0, 1, 1]), cache=cache)
    own, at = [layer.clone() for layer in cache.own], [ring.at.clone() for ring in cache.rings]
    across = [layer.clone() for layer in cache.across]
    parents = torch.tensor([2, 0, 2, 1])
    cache.reorder(parents)
    for before, after in zip(own + at, cache.own + [ring.at for ring in cache.rings], strict=True):
        assert torch.equal(after, before[parents] if before.dim() == 2 else before[:, parents])
    assert all(torch.equal(one, other) for one, other in zip(across, cache.across, strict=True))


@torch.no_grad()
def test_reorder_reaches_a_ring_that_has_wrapped():
    model = decoder_only(window=5, context=200)
    cache = model.allocate(slots=2, capacity=150)
    rows = random_rows(0, 140, 140)
    for at in range(139):
        take_step(model, cache, [rows[0][at], rows[1][at]], [at, at])
    assert cache.filled > cache.own[0].shape[3]
    cache.reorder(torch.tensor([1, 0]))
    swapped = take_step(model, cache, [rows[1][139], rows[0][139]], [139, 139])
    equal(swapped, torch.stack([one_pass(model, row)[-1] for row in rows[::-1]]))


@torch.no_grad()
def test_keep_forgets_the_other_slots():
    model = decoder_only()
    cache = model.allocate(slots=3, capacity=20)
    rows = random_rows(0, 6, 6, 6)
    model(pack(rows), cache=cache)
    cache.keep(torch.tensor([True, False, True]))
    assert (cache.rings[0].at[1] == sight.UNREACHABLE).all()
    # The forgotten slot, asked to go on, sees its new token alone; the others go on.
    after = take_step(model, cache, [3, 3, 3], [6, 6, 6])
    alone = model.allocate(slots=1, capacity=20)
    equal(after[1], take_step(model, alone, [3], [6])[0])
    equal(after[0], one_pass(model, [*rows[0], 3])[-1])
    equal(after[2], one_pass(model, [*rows[2], 3])[-1])


@torch.no_grad()
def test_a_narrower_cache_goes_on_with_the_slots_and_sources_it_was_given():
    model = a_model(decoder=Stack(layers=2, heads=2, feed_forward=24, window=(0, 3)))
    sources, rows = random_rows(8, 9, 4, 6), random_rows(9, *[6] * 6)
    cache = model.allocate(slots=6, capacity=20, sources=3, source_capacity=9, chunk=6)
    model.read(pack(sources), cache)
    model(pack(rows, reads=[0, 0, 1, 1, 2, 2]), cache=cache)
    wide = [layer.clone() for layer in cache.own]
    narrow = cache.narrow(torch.tensor([5, 4, 0, 1]), torch.tensor([2, 0]))
    states = take_step(model, narrow, [3, 4, 5, 6], [6] * 4, sources=2)
    ends = [(5, 3, 2), (4, 4, 2), (0, 5, 0), (1, 6, 0)]
    equal(states, torch.stack([one_pass(model, [*rows[slot], last], sources[of])[-1] for slot, last, of in ends]))
    # The wide one is untouched, and so it can go on too.
    assert all(torch.equal(one, other) for one, other in zip(wide, cache.own, strict=True))
    equal(take_step(model, cache, [9] * 6, [6] * 6, sources=3)[3], one_pass(model, [*rows[3], 9], sources[1])[-1])


@torch.no_grad()
@pytest.mark.parametrize("window", [0, 5], ids="window {}".format)
@pytest.mark.parametrize("forgets", [True, False], ids="forgets {}".format)
@pytest.mark.parametrize("prefill", [1, 4], ids="prefill {}".format)
def test_a_slot_used_again_shows_nothing_of_the_old_row(window, forgets, prefill):
    model = decoder_only(window=window, context=200)
    cache = model.allocate(slots=2, capacity=200, chunk=prefill)
    old, other, new = random_rows(1, 130, 150, 20)
    for at in range(130):
        take_step(model, cache, [old[at], other[at]], [at, at])
    if forgets:
        cache.keep(torch.tensor([False, True]))
    first = model(pack([new[:prefill]]), cache=cache)
    expected, beside = one_pass(model, new), one_pass(model, other)
    equal(first, expected[:prefill])
    for at in range(prefill, 20):
        states = take_step(model, cache, [new[at], other[130 + at - prefill]], [at, 130 + at - prefill])
        equal(states[0], expected[at])
        equal(states[1], beside[130 + at - prefill])


@torch.no_grad()
def test_a_source_read_again_shows_nothing_of_the_old_one():
    model = a_model()
    long, short, other = random_rows(2, 12, 3, 7)
    cache = model.allocate(slots=2, capacity=5, sources=2, source_capacity=12)
    model.read(pack([long, other]), cache)
    model.read(pack([short], names=[0]), cache)
    states = take_step(model, cache, [1, 1], [0, 0], sources=2)
    equal(states, torch.cat([one_pass(model, [1], short), one_pass(model, [1], other)]))


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 5, 64, (7, 0), (3, 64)], ids=str)
@pytest.mark.parametrize("chunk", [1, 9, 61])
def test_a_ring_goes_round_and_round(window, chunk):
    model = decoder_only(window=window, context=400)
    rows = random_rows(3, 390, 301)
    expected = [one_pass(model, row) for row in rows]
    cache = model.allocate(slots=2, capacity=390, chunk=chunk)
    smallest = min(layer.shape[3] for layer in cache.own)
    assert smallest <= 192 < 301
    for begin in range(0, 390, chunk):
        names = [name for name, row in enumerate(rows) if len(row) > begin]
        batch = pack([rows[name][begin : begin + chunk] for name in names], names=names, starts=[begin] * len(names))
        for name, states in zip(names, unpack(model(batch, cache=cache), batch), strict=True):
            equal(states, expected[name][begin : begin + chunk])


@torch.no_grad()
def test_a_ring_takes_as_many_tokens_at_once_as_it_says():
    model = decoder_only(window=5, context=300)
    (row,) = random_rows(4, 300)
    cache = model.allocate(slots=1, capacity=300, chunk=60)
    room = cache.own[0].shape[3] - 5 + 1
    model(pack([row[:100][:room]]), cache=cache)
    with pytest.raises(CacheError, match=f"{room + 1} tokens at once .* window of 5") as caught:
        model(pack([row[room : 2 * room + 1]], starts=[room]), cache=cache)
    assert str(room) in caught.value.hint
    states = model(pack([row[room : 2 * room]], starts=[room]), cache=cache)
    equal(states, one_pass(model, row[: 2 * room])[room:])


@torch.no_grad()
@pytest.mark.parametrize(("window", "capacity"), [(128, 20), (63, 64), (64, 64)])
def test_a_window_wider_than_the_row_takes_the_whole_row_at_once(window, capacity):
    model = decoder_only(window=window, context=200)
    (row,) = random_rows(5, capacity)
    cache = model.allocate(slots=1, capacity=capacity, chunk=capacity - 1)
    states = model(pack([row[:-1]]), cache=cache)
    equal(torch.cat([states, take_step(model, cache, [row[-1]], [capacity - 1])]), one_pass(model, row))


@torch.no_grad()
@pytest.mark.parametrize("share", [1, 3])
def test_slots_that_share_a_source_read_the_same_keys(share):
    model = a_model()
    sources = random_rows(6, 4, 11)
    slots = 2 * share
    rows = random_rows(7, *[3] * slots)
    cache = model.allocate(slots=slots, capacity=3, sources=2, source_capacity=11)
    model.read(pack(sources), cache)
    for at in range(3):
        states = take_step(model, cache, [row[at] for row in rows], [at] * slots, sources=2)
    expected = [one_pass(model, row, sources[slot // share])[-1] for slot, row in enumerate(rows)]
    equal(states, torch.stack(expected))
