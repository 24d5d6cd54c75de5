"""The rate goes up in a line, then down as its schedule says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from leftward.settings import Training
from leftward.training.schedule import rate_at


def make(schedule: str, warm_up: int, steps: int, rate: float = 0.25) -> Training:
    return Training(
        steps=steps,
        batch_tokens=1,
        learning_rate=rate,
        warm_up=warm_up,
        validate_every=1,
        save_every=1,
        schedule=schedule,
    )


@given(some.sampled_from(("inverse-root", "cosine")), some.integers(0, 50), some.integers(51, 400))
def test_up_in_a_line_and_never_up_again(schedule: str, warm_up: int, steps: int) -> None:
    training = make(schedule, warm_up, steps)
    rates = [rate_at(step, training) for step in range(1, steps + 1)]
    for step, rate in enumerate(rates[:warm_up], start=1):
        assert rate == pytest.approx(0.25 * step / warm_up)
    assert all(later <= earlier for earlier, later in zip(rates[warm_up:], rates[warm_up + 1 :], strict=False))
    assert min(rates) > 0 and max(rates) <= 0.25 + 1e-12
    if warm_up:
        assert max(rates) == rates[warm_up - 1]


@given(some.integers(1, 1000), some.integers(1, 9))
def test_four_times_the_steps_halve_the_rate(warm_up: int, times: int) -> None:
    training = make("inverse-root", warm_up, 10**6)
    assert rate_at(4 * times * warm_up, training) == pytest.approx(rate_at(times * warm_up, training) / 2)


@given(some.integers(0, 99), some.integers(100, 1000))
def test_a_cosine_ends_at_a_tenth(warm_up: int, steps: int) -> None:
    training = make("cosine", warm_up, steps)
    assert rate_at(steps, training) == pytest.approx(0.025)
    # Halfway between, it is halfway down.
    if (steps - warm_up) % 2 == 0:
        assert rate_at((steps + warm_up) // 2, training) == pytest.approx((0.25 + 0.025) / 2)
    assert rate_at(steps + 5, training) == pytest.approx(0.025)


def test_without_a_warm_up_it_begins_at_the_peak() -> None:
    assert rate_at(1, make("inverse-root", 0, 10)) == 0.25
    assert rate_at(1, make("cosine", 0, 10**6)) == pytest.approx(0.25)


def test_a_warm_up_longer_than_the_run() -> None:
    for schedule in ("inverse-root", "cosine"):
        rates = [rate_at(step, make(schedule, 100, 10)) for step in range(1, 11)]
        assert rates == [pytest.approx(0.25 * step / 100) for step in range(1, 11)]
        assert all(map(math.isfinite, rates))
