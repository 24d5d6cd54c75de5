"""Shuffles are shuffles, any place of them can be had alone, and they are the same on every machine for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.errors import SettingsError
from leftward.text.order import hold_out, permute, scramble, take_turns


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_shuffle_holds_every_place_once(size: int, key: int) -> None:
    shuffled = permute(np.arange(size), size, key)
    assert np.array_equal(np.sort(shuffled), np.arange(size))
    some = np.random.default_rng(0).integers(0, size, 20)
    assert np.array_equal(permute(some, size, key), shuffled[some])


def test_one_key_a_place() -> None:
    keys = scramble(3, np.arange(100) % 2)
    both = permute(np.arange(100), 100, keys)
    for parity in (0, 1):
        assert np.array_equal(both[parity::2], permute(np.arange(100), 100, keys[parity])[parity::2])


@pytest.mark.parametrize("size", [2, 3, 5, 8, 100])
def test_every_place_is_as_likely(size: int) -> None:
    trials = 4000
    first = permute(np.zeros(trials, int), size, scramble(1, np.arange(trials)))
    last = permute(np.full(trials, size - 1), size, scramble(1, np.arange(trials)))
    for found in (first, last):
        counts = np.bincount(found, minlength=size)
        surprise = ((counts - trials / size) ** 2 / (trials / size)).sum()
        assert surprise < size + 5 * np.sqrt(2 * size)


def test_neighbours_are_parted() -> None:
    shuffled = permute(np.arange(29_000), 29_000, 7)
    assert abs(np.corrcoef(shuffled[:-1], shuffled[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(shuffled, permute(np.arange(29_000), 29_000, 8))[0, 1]) < 0.03


def test_the_order_never_changes() -> None:
    # A stored run goes on with these very numbers.
    assert scramble(1, 2, 3).tolist() == [15020427595393229491]
    assert permute(np.arange(12), 12, 5).tolist() == [2, 3, 4, 9, 7, 11, 6, 8, 10, 5, 1, 0]
    assert permute([0, 10**12], 10**12 + 1, 2**63).tolist() == [295901074488, 343623783028]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 10**9))
def test_turns_are_counted_and_fair(weights: list[float], start: int) -> None:
    corpus, before = take_turns(np.arange(3000), weights)
    taken = np.zeros(len(weights), int)
    shares = np.array(weights) / sum(weights)
    for sample, (which, count) in enumerate(zip(corpus, before, strict=True)):
        assert count == taken[which]
        taken[which] += 1
        if sample % 100 == 0:
            assert (abs(taken - (sample + 1) * shares) <= len(weights) + 0.01).all()
    later, count = take_turns(np.arange(start, start + 50), weights)
    for which in set(later.tolist()):
        mine = count[later == which]
        assert np.array_equal(mine, mine[0] + np.arange(len(mine)))


def test_hold_out() -> None:
    training, validation = hold_out(1000, 50, seed=3)
    assert len(validation) == 50
    assert np.array_equal(np.sort(np.concatenate([training, validation])), np.arange(1000))
    assert np.array_equal(hold_out(1000, 50, seed=3)[1], validation)
    assert not np.array_equal(hold_out(1000, 50, seed=4)[1], validation)
    for number in (0, 10, 11):
        with pytest.raises(SettingsError, match="held out"):
            hold_out(10, number, seed=1)
