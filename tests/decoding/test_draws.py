"""Draws are even, independent of one another, and functions of who asks alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leftward.decoding.draws import draw
from leftward.decoding.sample import choose_by_lot
from leftward.settings import Sample

COUNT = 40_000


def chi_square(observed, expected):
    """How far counts are from what is expected, in standard deviations of that measure."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    freedom = observed.size - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def along(what, seed=1, count=COUNT):
    """Draws of many rows, samples, positions or seeds, all else being equal."""
    zeros, many = torch.zeros(count, dtype=torch.long), torch.arange(count)
    if what == "seed":
        return torch.cat([draw(each, zeros[:1], zeros[:1], zeros[:1]) for each in range(count)])
    parts = {name: many if name == what else zeros for name in ("row", "sample", "position")}
    return draw(seed, parts["row"], parts["sample"], parts["position"])


@pytest.mark.parametrize("seed", [0, 1, 2**62])
@pytest.mark.parametrize("what", ["row", "sample", "position"])
def test_draws_are_even(what, seed):
    lots = along(what, seed).numpy()
    assert lots.min() >= 0
    assert lots.max() < 1
    counts, _ = np.histogram(lots, bins=100, range=(0, 1))
    assert chi_square(counts, np.full(100, COUNT / 100)) < 4


def test_draws_of_many_seeds_are_even():
    counts, _ = np.histogram(along("seed", count=5_000).numpy(), bins=50, range=(0, 1))
    assert chi_square(counts, np.full(50, 100)) < 4


@pytest.mark.parametrize("what", ["row", "sample", "position", "seed"])
@pytest.mark.parametrize("apart", [1, 8])
def test_neighbours_know_nothing_of_each_other(what, apart):
    """The pairs fill the square evenly, which a stripe or a repeat would not."""
    lots = along(what, count=4_000 if what == "seed" else COUNT).numpy()
    one, other = lots[:-apart], lots[apart:]
    counts, _, _ = np.histogram2d(one, other, bins=12, range=((0, 1), (0, 1)))
    assert chi_square(counts, np.full((12, 12), len(one) / 144)) < 4


def test_no_two_askers_share_a_draw():
    """Row 2 at position 1 is not row 1 at position 2, nor sample 1 of anybody."""
    grid = torch.cartesian_prod(torch.arange(20), torch.arange(10), torch.arange(50))
    lots = torch.cat([draw(seed, *grid.unbind(dim=1)) for seed in range(4)])
    assert len(lots.unique()) == len(lots)
    counts, _ = np.histogram(lots.numpy(), bins=100, range=(0, 1))
    assert chi_square(counts, np.full(100, len(lots) / 100)) < 4


@given(st.integers(0, 2**63 - 1), st.lists(st.tuples(*[st.integers(0, 2**40)] * 3), min_size=1, max_size=9), st.data())
def test_a_draw_is_the_same_in_any_batch(seed, askers, data):
    together = draw(seed, *torch.tensor(askers).unbind(dim=1))
    order = data.draw(st.permutations(range(len(askers))))
    moved = draw(seed, *torch.tensor([askers[place] for place in order]).unbind(dim=1))
    assert moved.equal(together[list(order)])
    for asker, lot in zip(askers, together, strict=True):
        assert draw(seed, *torch.tensor([asker]).unbind(dim=1))[0] == lot


def in_words(seed, *parts):
    """The same numbers by whole-number arithmetic."""
    whole = 2**64

    def mix(bits):
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % whole
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % whole
        return bits ^ bits >> 31

    mixed = mix(seed)
    for part in parts:
        mixed = mix((mixed + (part + 1) * 0x9E3779B97F4A7C15) % whole)
    return (mixed >> 11) / 2**53


@given(st.integers(0, 2**63 - 1), st.tuples(*[st.integers(0, 2**40)] * 3))
def test_tensors_count_as_whole_numbers_do(seed, asker):
    assert draw(seed, *torch.tensor([asker]).unbind(dim=1)).item() == in_words(seed, *asker)


@pytest.mark.parametrize(
    "settings",
    [
        Sample(),
        Sample(temperature=0.6),
        Sample(temperature=2),
        Sample(top_k=3),
        Sample(top_p=0.75),
        Sample(1.3, 5, 0.8),
    ],
    ids=str,
)
def test_words_come_as_often_as_they_are_likely(settings):
    scores = torch.tensor([2.0, -1.0, 0.5, -torch.inf, 1.5, 0.0, 0.5, -3.0])
    lots = along("position", seed=7)
    words = choose_by_lot(scores.expand(COUNT, -1), lots, settings)
    shares = np.exp(scores.double().numpy() / settings.temperature)
    ranked = np.argsort(-shares, kind="stable")
    shares[ranked[settings.top_k or len(shares) :]] = 0
    reached = np.cumsum(shares[ranked] / shares.sum())
    shares[ranked[1 + int((reached < settings.top_p).sum()) :]] = 0
    counts = np.bincount(words.numpy(), minlength=len(shares))
    kept = shares > 0
    assert counts[~kept].sum() == 0
    assert chi_square(counts[kept], (shares / shares.sum() * COUNT)[kept]) < 4


@given(
    st.lists(st.sampled_from([-float("inf"), -30.0, -1.0, 0.0, 0.0, 2.0]), min_size=2, max_size=8),
    st.floats(0.01, 30),
    st.integers(0, 9),
    st.floats(0.01, 1),
    st.sampled_from([0.0, 0.25, 0.5, 0.999, 1 - 2**-53]),
)
def test_no_word_that_is_ruled_out_is_ever_drawn(line, temperature, top_k, top_p, lot):
    line[-1] = max(line[-1], -5.0)
    settings = Sample(temperature=temperature, top_k=top_k, top_p=top_p)
    word = choose_by_lot(torch.tensor([line]), torch.tensor([lot]), settings).item()
    assert line[word] > -float("inf")
    better = sum(score > line[word] for score in line)
    assert not top_k or better < top_k
    if top_k == 1 or lot == 0:
        assert word == line.index(max(line))


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-3])
def test_the_coldest_draw_is_the_likeliest_word(temperature):
    scores = torch.tensor([[1.0, 50.0, 100.0], [9.0, -2.0, 8.0]])
    words = choose_by_lot(scores, torch.tensor([0.999, 0.999]), Sample(temperature=temperature))
    assert words.tolist() == [2, 0]
