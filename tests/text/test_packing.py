"""Every row is in one batch, no batch is over its budget, and rows of like length are together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.errors import SettingsError
from leftward.text.packing import cut

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=200)


def fewest(target: np.ndarray, source: np.ndarray, budget: int) -> int:
    """Batches that a plain walk over the sorted rows needs."""
    count, targets, sources = 1, 0, 0
    for at in np.lexsort((source, target, np.maximum(source, target))):
        if targets and (targets + target[at] > budget or sources + source[at] > 2 * budget):
            count, targets, sources = count + 1, 0, 0
        targets, sources = targets + target[at], sources + source[at]
    return count


@settings(max_examples=300, deadline=None)
@given(lengths, st.integers(40, 500), st.booleans())
def test_batches_hold_every_row_once_within_the_budget(rows: list[tuple[int, int]], budget: int, paired: bool) -> None:
    source, target = np.array(rows).T
    batches = cut(source if paired else None, target, budget)
    assert sorted(np.concatenate(batches)) == list(range(len(rows)))
    longer = np.maximum(source, target) if paired else target
    reached = 0
    for batch in batches:
        assert target[batch].sum() <= budget
        assert not paired or source[batch].sum() <= 2 * budget or len(batch) == 1
        assert longer[batch].min() >= reached
        reached = longer[batch].max()
    assert len(batches) == fewest(target, source if paired else np.zeros_like(target), budget)


def test_batches_are_even() -> None:
    target = np.random.default_rng(0).integers(5, 30, 1000)
    sizes = [target[batch].sum() for batch in cut(None, target, 4096)]
    assert len(sizes) == -(-target.sum() // 4096)
    assert min(sizes) > 0.97 * max(sizes)


def test_short_targets_do_not_gather_sources_without_end() -> None:
    source = np.full(1000, 50)
    assert max(source[batch].sum() for batch in cut(source, np.ones(1000), 1000)) <= 2000


def test_nothing_and_too_much() -> None:
    assert cut(None, [], 10) == []
    with pytest.raises(SettingsError, match="11 tokens does not fit in a batch of 10"):
        cut(None, [3, 11], 10)
