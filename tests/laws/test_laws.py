"""Every law holds for every mix of parts."""

from itertools import combinations, product

import pytest
import torch
from tests.laws.models import CHOICES, PARTS, build, describe, is_possible, met, settings_of

from leftward.auditing import laws
from leftward.auditing.specimens import draw_sample
from leftward.model.attention import forced_path
from leftward.training.objective import shift

each_choice = pytest.mark.parametrize("choice", CHOICES, ids=describe)


def test_every_two_values_of_any_two_parts_meet():
    together = set().union(*map(met, CHOICES))
    for one, other in combinations(PARTS, 2):
        for value, another in product(PARTS[one], PARTS[other]):
            if is_possible({one: value, other: another}):
                assert ((one, value), (other, another)) in together


@each_choice
@pytest.mark.parametrize("law", laws.OF_A_MODEL, ids=lambda law: law.__name__)
def test_a_law_holds(law, choice):
    model = build(settings_of(choice))
    with forced_path(choice["path"]):
        finding = law(model, draw_sample(model.settings, seed=4))
    assert finding.holds, finding


@each_choice
def test_parallel_training_is_sequential_training(choice):
    model = build(settings_of(choice)).train()
    sample = draw_sample(model.settings, seed=5, rows=3, longest=7)
    rows = [row for row in sample.rows if len(row) > 1]
    sources = None if sample.sources is None else sample.sources[: len(rows)]
    with forced_path(choice["path"]):
        finding = laws.parallel_equals_sequential(model, shift(rows, sources), smoothing=0.1)
    assert finding.holds, finding


@each_choice
def test_rows_do_not_meet_in_float32(choice):
    model = build(settings_of(choice), dtype=torch.float32)
    finding = laws.rows_do_not_meet(model, draw_sample(model.settings, seed=6))
    assert finding.holds, finding


@each_choice
def test_exact_rows_have_the_same_bits(choice):
    model = build(settings_of(choice), dtype=torch.float32)
    sample = draw_sample(model.settings, seed=7, rows=7, longest=30)
    finding = laws.exact_rows_have_the_same_bits(model, sample)
    assert finding.holds, finding


def test_without_exact_arithmetic_bits_differ():
    differing = 0
    for choice in CHOICES:
        model = build(settings_of(choice), dtype=torch.float32)
        differing += laws.count_differing_rows(model, draw_sample(model.settings, seed=7, rows=7, longest=30))
    assert differing > 0


def test_copying_does_not_pay():
    model = build(settings_of(CHOICES[0]))
    finding = laws.copying_does_not_pay(shift, draw_sample(model.settings, seed=8), model.settings.vocabulary)
    assert finding.holds, finding
