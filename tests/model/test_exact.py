"""Exact arithmetic: the same bits for a row of a linear map, whatever stands around it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from leftward.model.exact import exact, is_exact, round_up
from leftward.model.linear import Linear, linear


@given(some.integers(0, 10**6), some.integers(1, 512))
def test_the_next_multiple(number, multiple):
    up = round_up(number, multiple)
    assert up % multiple == 0
    assert 0 <= up - number < multiple


def test_it_holds_inside_its_block_even_when_that_fails():
    assert not is_exact()
    with exact():
        with exact():
            assert is_exact()
        assert is_exact()
    with pytest.raises(KeyError), exact():
        raise KeyError
    assert not is_exact()


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 384), (128, 10_000), (20, 24)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(inputs, outputs):
    torch.manual_seed(0)
    states, part = torch.randn(70, inputs), Linear(inputs, outputs, bias=True)
    with exact(), torch.no_grad():
        whole = part(states)
        for count in (1, 2, 3, 5, 7, 8, 9, 17, 33, 70):
            assert torch.equal(part(states[:count]), whole[:count])
            assert torch.equal(part(states[-count:]), whole[-count:])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("arithmetic", ["usual", "exact"])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_a_linear_map_is_states_times_weight_plus_bias(bias, arithmetic, count):
    torch.manual_seed(0)
    weight, states = torch.randn(3, 5, dtype=torch.float64), torch.randn(count, 5, dtype=torch.float64)
    states.requires_grad_()
    added = torch.randn(3, dtype=torch.float64) if bias else None
    if arithmetic == "exact":
        with exact():
            result = linear(states, weight, added)
    else:
        result = linear(states, weight, added)
    torch.testing.assert_close(result, states @ weight.t() + (added if bias else 0))
    slope = torch.randn(count, 3, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(result, states, slope)[0], slope @ weight)


def test_a_new_linear_map_has_even_weights_and_no_bias():
    torch.manual_seed(0)
    part = Linear(300, 500, bias=True)
    assert not part.bias.any()
    bound = (6 / 800) ** 0.5
    assert 0.99 * bound < part.weight.abs().max() <= bound
    assert abs(part.weight.mean()) < 5 * bound / (3 * 150_000) ** 0.5
    assert Linear(3, 5, bias=False).bias is None
