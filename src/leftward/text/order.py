"""The order of samples, had for any one of them without going through those before.

Nothing is stored and nothing is drawn: places come out of whole-number arithmetic that no version of any
library can change. So a run can go on at any sample, on any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leftward.errors import SettingsError

_ROUNDS = 6
_GRAIN = 20  # weights are rounded to 2**-20, so that 2**43 samples can be counted in 64 bits


def scramble(*parts: ArrayLike) -> NDArray[np.uint64]:
    """Numbers that look random, from numbers that do not: splitmix64's finisher over each part.

    >>> (scramble(7, [0, 1]) % np.uint64(1000)).tolist()
    [221, 415]
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = (state ^ np.asarray(part, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def permute(places: ArrayLike, size: int, key: ArrayLike) -> NDArray[np.int64]:
    """Where a shuffle of `size` things, one shuffle per key, puts these places.

    A Feistel network shuffles the next power of four; who lands outside goes on until he is inside.

    >>> sorted(permute(range(10), 10, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    places, keys = np.broadcast_arrays(np.asarray(places, np.uint64), np.asarray(key, np.uint64))
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    found = places.copy()
    outside = np.ones(found.shape, bool)
    while outside.any():
        left, right, walking = found[outside] >> half, found[outside] & low, keys[outside]
        for turn in range(_ROUNDS):
            left, right = right, left ^ (scramble(walking, turn, right) & low)
        found[outside] = (left << half) | right
        outside = found >= size
    return found.astype(np.int64)


def take_turns(samples: ArrayLike, weights: Sequence[float]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which corpus each sample comes from, and how many came from that corpus before it.

    Each corpus but the last takes its share of what the corpora before it leave, as evenly as can be.

    >>> corpus, before = take_turns(range(6), [2.0, 1.0])
    >>> corpus.tolist(), before.tolist()
    ([1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 2, 3])
    """
    before = np.array(samples, np.int64)
    corpus = np.full(before.shape, len(weights) - 1)
    for number in range(len(weights) - 1):
        share = round(weights[number] / sum(weights[number:]) * 2**_GRAIN)
        share = min(max(share, 1), 2**_GRAIN - 1)
        taken, after = before * share >> _GRAIN, (before + 1) * share >> _GRAIN
        waiting = corpus == len(weights) - 1
        mine = waiting & (after > taken)
        corpus[mine] = number
        before = np.where(waiting, np.where(mine, taken, before - taken), before)
    return corpus, before


def hold_out(size: int, number: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Part `size` lines into those to train on and `number` others to validate on, both in their own order.

    >>> training, validation = hold_out(10, 2, seed=1)
    >>> len(training), len(validation), set(training) & set(validation)
    (8, 2, set())
    """
    if not 0 < number < size:
        raise SettingsError(
            f"{number} of {size} lines cannot be held out for validation",
            where="validation-share",
            hint="leave at least one line on either side",
        )
    held = np.zeros(size, bool)
    held[permute(range(number), size, scramble(seed))] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
