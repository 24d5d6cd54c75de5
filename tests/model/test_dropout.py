"""Dropout by bytes: the right share, the right mean, and the same mask on the way back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from tests.laws.models import a_model

from leftward.model.dropout import drop, drop_and_add, threshold_of
from leftward.packed import pack

SHARES = (0.1, 0.3, 0.5, 0.9)
COUNT = 400_000


@given(some.floats(0, 0.999))
def test_the_threshold_is_the_nearest_of_256(share):
    assert abs(threshold_of(share) / 256 - share) <= 0.5 / 256 + 1e-12 or share > 255 / 256
    assert 0 <= threshold_of(share) <= 255


@pytest.mark.parametrize("share", SHARES)
def test_the_share_that_is_dropped(share):
    torch.manual_seed(1)
    exact = threshold_of(share) / 256
    dropped = (drop(torch.ones(COUNT), share) == 0).double()
    # Five standard deviations: once in two million seeds.
    deviation = math.sqrt(exact * (1 - exact) / COUNT)
    assert abs(dropped.mean() - exact) < 5 * deviation
    # Neighbours know nothing of each other: bytes of one word, and words of one draw.
    for distance in (1, 2, 4, 7, 8, 9, 64):
        centred = dropped - exact
        correlation = (centred[distance:] * centred[:-distance]).mean() / (exact * (1 - exact))
        assert abs(correlation) < 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("share", SHARES)
def test_what_is_kept_is_scaled_so_that_the_mean_stays(share):
    torch.manual_seed(2)
    states = torch.rand(COUNT, dtype=torch.float64) + 1
    dropped = drop(states, share)
    kept = dropped != 0
    exact = threshold_of(share) / 256
    torch.testing.assert_close(dropped[kept], states[kept] / (1 - exact), rtol=1e-15, atol=0)
    deviation = (dropped.var() / COUNT).sqrt()
    assert abs(dropped.mean() - states.mean()) < 5 * deviation


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (16, 33)])
def test_the_gradient_uses_the_very_same_mask(dtype, shape):
    torch.manual_seed(3)
    states = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    dropped = drop(states, 0.4)
    gradient = torch.randn(shape).to(dtype)
    dropped.backward(gradient)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    factor = 256 / (256 - threshold_of(0.4))
    # In the arithmetic of the states, as forward does it.
    expected = gradient * kept.to(dtype).mul(factor)
    assert torch.equal(states.grad, expected)
    assert dropped.dtype == states.grad.dtype == dtype


def test_the_residual_goes_through_untouched():
    torch.manual_seed(4)
    residual, states = (torch.rand(40, 50, dtype=torch.float64) + 1 for _ in range(2))
    residual.requires_grad_()
    states.requires_grad_()
    together = drop_and_add(residual, states, 0.5)
    gradient = torch.randn(40, 50, dtype=torch.float64)
    together.backward(gradient)
    dropped = together == residual
    assert abs(dropped.double().mean() - 0.5) < 0.1
    torch.testing.assert_close((together - residual)[~dropped], 2 * states[~dropped])
    assert torch.equal(residual.grad, gradient)
    assert torch.equal(states.grad, torch.where(dropped, 0, 2 * gradient))


def test_the_same_generator_state_gives_the_same_mask():
    states = torch.ones(1_000)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, next_one = drop(states, 0.5), drop(states, 0.5)
    torch.set_rng_state(before)
    again = drop(states, 0.5)
    torch.set_rng_state(before)
    added = drop_and_add(torch.zeros(1_000), states, 0.5)
    assert torch.equal(one, again)
    assert torch.equal(one, added)
    assert not torch.equal(one, next_one)


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_threshold_of_zero_draws_nothing(share):
    states, residual = torch.randn(2, 100)
    before = torch.get_rng_state()
    assert drop(states, share) is states
    assert torch.equal(drop_and_add(residual, states, share), residual + states)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_tokens_are_dropped_too():
    assert drop(torch.ones(0, 4), 0.5).shape == (0, 4)


@pytest.mark.parametrize("norm_place", ["before", "after"])
def test_a_model_drops_in_training_and_nowhere_else(norm_place):
    model = a_model(dropout=0.3, norm_place=norm_place)
    plain = a_model(norm_place=norm_place)
    target, source = pack([[1, 2, 3], [4, 5]]), pack([[6], [7, 8]])
    before = torch.get_rng_state()
    expected = plain(target, source)
    assert torch.equal(model(target, source), expected)
    assert torch.equal(torch.get_rng_state(), before)
    model.train()
    one, other = model(target, source), model(target, source)
    assert not torch.equal(one, expected)
    assert not torch.equal(one, other)
    torch.set_rng_state(before)
    assert torch.equal(model(target, source), one)
    assert torch.equal(plain.train()(target, source), expected)
