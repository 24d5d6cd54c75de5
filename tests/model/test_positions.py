"""Positions: what each scheme promises about distance."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from leftward.model.positions import (
    Alibi,
    Learned,
    Relative,
    Rotary,
    Sinusoidal,
    sinusoids,
    slopes,
    turn,
)
from leftward.packed import Places
from leftward.settings import Model, Stack


def settings_with(**changes):
    return Model(**{"vocabulary": 9, "width": 12, "context": 50, "decoder": Stack(heads=2), **changes})


@given(some.integers(1, 40), some.integers(1, 9))
def test_sinusoids_are_sines_and_cosines_of_falling_rates(count, width):
    table = sinusoids(count, width)
    assert table.shape == (count, width)
    half = (width + 1) // 2
    for at in range(count):
        for number in range(width):
            wave = math.sin if number < half else math.cos
            expected = wave(at / 10_000 ** ((number % half) / half))
            assert table[at, number].item() == pytest.approx(expected, abs=1e-12)


def test_sinusoids_tell_shifts_by_one_turn_for_all_places():
    # A shift turns every pair of sine and cosine by one angle, wherever it begins.
    sine, cosine = sinusoids(60, 8).chunk(2, dim=1)
    for shift in (1, 7):
        product = sine[shift:] * sine[:-shift] + cosine[shift:] * cosine[:-shift]
        torch.testing.assert_close(product, product[:1].expand_as(product))


def test_looked_up_positions_begin_at_the_offset():
    model = settings_with(positions="learned", position_offset=3)
    for kind in (Learned, Sinusoidal):
        positions = kind(model)
        assert positions(torch.tensor([0, 52])).shape == (2, 12)
        with pytest.raises(IndexError):
            positions(torch.tensor([53]))
    waves = Sinusoidal(model)(torch.arange(5))
    torch.testing.assert_close(waves, sinusoids(5, 12).float())
    assert not list(Sinusoidal(model).parameters())
    assert not Sinusoidal(model).state_dict()  # nothing to save in what a formula makes


@given(some.integers(0, 300), some.integers(0, 300), some.integers(0, 9_000), some.sampled_from([2, 6, 64]))
def test_rotary_scores_depend_on_distance_alone(query_at, key_at, shift, size):
    rotary = Rotary(settings_with(width=size, decoder=Stack(heads=1)), Stack(heads=1))
    generator = torch.Generator().manual_seed(query_at)
    query, key = torch.randn(2, 1, 1, size, dtype=torch.float64, generator=generator)

    def score(one, other):
        angles = [rotary.angles(torch.tensor([at]), torch.float64) for at in (one, other)]
        return (turn(query, angles[0]) * turn(key, angles[1])).sum()

    torch.testing.assert_close(score(query_at, key_at), score(query_at + shift, key_at + shift), atol=1e-9, rtol=0)
    turned = turn(query, rotary.angles(torch.tensor([query_at]), torch.float64))
    torch.testing.assert_close(turned.norm(), query.norm())
    if query_at != key_at:
        assert abs(score(query_at, key_at) - score(key_at, key_at)) > 1e-9


def test_rotary_at_the_beginning_changes_nothing():
    rotary = Rotary(settings_with(), Stack(heads=2))
    heads = torch.randn(1, 4, 6)
    assert torch.equal(turn(heads, rotary.angles(torch.tensor([0]), torch.float32)), heads)


def test_rotary_pairs_turn_at_the_rates_of_their_base():
    rotary = Rotary(settings_with(rotary_base=100.0, width=8), Stack(heads=2))
    cosine, sine = rotary.angles(torch.tensor([0, 5]), torch.float64)
    assert cosine.shape == sine.shape == (2, 1, 4)
    expected = torch.tensor([5.0, 0.5, 5.0, 0.5], dtype=torch.float64)  # a base of 100: rates of 1 and 1/10
    torch.testing.assert_close(cosine[1, 0], expected.cos())
    torch.testing.assert_close(sine[1, 0], expected.sin())


def test_rotary_angles_are_exact_far_into_a_row_whatever_the_model_was_cast_to():
    rotary = Rotary(settings_with(), Stack(heads=2)).to(torch.bfloat16)
    for at, dtype, near in ((2**24 + 1, torch.float32, 1e-6), (1_003, torch.bfloat16, 4e-3)):
        cosine, sine = rotary.angles(torch.tensor([at]), dtype)
        assert cosine.dtype == sine.dtype == dtype
        assert cosine[0, 0, 0].item() == pytest.approx(math.cos(at), abs=near)
        assert sine[0, 0, 0].item() == pytest.approx(math.sin(at), abs=near)


def places(*at):
    at = torch.tensor([at])
    return Places(torch.zeros_like(at), at, torch.zeros_like(at))


def relative(*, both_ways, buckets=32, distance=128):
    model = settings_with(positions="relative", relative_buckets=buckets, relative_distance=distance)
    return Relative(model, Stack(heads=3), both_ways=both_ways)


def buckets_of(positions, distances):
    """The bucket of keys so far behind a query."""
    with torch.no_grad():
        positions.scores.weight.copy_(torch.arange(positions.buckets)[:, None].expand(-1, 3))
    scores = positions(places(1_000), places(*(1_000 - distance for distance in distances)))
    assert scores.shape == (1, 3, 1, len(distances))
    assert torch.equal(scores[:, 0], scores[:, 2])
    return scores[0, 0, 0].long().tolist()


@given(some.integers(2, 20).map(lambda half: 2 * half), some.integers(2, 60))
def test_relative_buckets_grow_with_distance(buckets, factor):
    distance = buckets * factor
    found = buckets_of(relative(both_ways=False, buckets=buckets, distance=distance), range(distance + 50))
    assert found == sorted(found)
    exact = buckets // 2
    assert found[:exact] == list(range(exact))  # near ones are told apart
    assert set(found[distance:]) == {buckets - 1}  # and from the far distance on all are one
    assert set(found) <= set(range(buckets))


@given(some.integers(2, 10).map(lambda half: 4 * half))
def test_relative_buckets_both_ways_are_distinct(buckets):
    positions = relative(both_ways=True, buckets=buckets, distance=200)
    behind = buckets_of(positions, range(300))
    ahead = buckets_of(positions, range(-1, -300, -1))
    assert not set(behind) & set(ahead)
    assert [bucket - buckets // 2 for bucket in ahead] == behind[1:]
    assert set(behind) | set(ahead) <= set(range(buckets))


def test_relative_keys_to_the_right_of_a_decoder_share_the_bucket_of_none():
    assert set(buckets_of(relative(both_ways=False), range(0, -50, -1))) == {0}


def test_relative_buckets_are_those_of_t5():
    # Worked out by hand: 16 + 16 * log(distance / 16) / log(128 / 16), cut off.
    found = buckets_of(relative(both_ways=False), (15, 16, 18, 19, 20, 21, 31, 64, 91, 112, 113, 127, 128))
    assert found == [15, 16, 16, 17, 17, 18, 21, 26, 29, 30, 31, 31, 31]


def test_relative_scores_learn():
    positions = relative(both_ways=True)
    positions(places(0, 1, 2), places(0, 1, 2, 3)).square().sum().backward()
    assert positions.scores.weight.grad.any()


def test_alibi_falls_with_distance_on_both_sides_and_slower_head_by_head():
    scores = Alibi(Stack(heads=4))(places(10), places(*range(21)))[0, :, 0]
    assert scores.shape == (4, 21)
    assert torch.equal(scores, scores.flip(1))
    assert (scores[:, 10] == 0).all()
    assert (scores[:, :10].diff(dim=1) > 0).all()
    torch.testing.assert_close(scores[:, 9], -torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]))
    torch.testing.assert_close(scores[:, 0], 10 * scores[:, 9])


@given(some.integers(1, 40))
def test_every_head_has_a_slope_of_its_own(heads):
    found = slopes(heads)
    assert len(set(found)) == heads
    assert all(0 < slope < 1 for slope in found)
    power = 2 ** (heads.bit_length() - 1)
    assert found[power - 1] == 2**-8
    if power == heads:
        ratios = {round(after / before, 12) for before, after in zip(found, found[1:], strict=False)}
        assert len(ratios) <= 1
    else:
        # The others lie between those of the power of two: every second one of twice as many.
        assert found[power:] == slopes(2 * power)[::2][: heads - power]
