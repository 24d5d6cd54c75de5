"""Every law catches the fault that was planted for it, and is silent on the same model without it."""

import pytest
from tests.laws.models import a_model

from leftward.auditing import laws
from leftward.auditing.specimens import draw_sample
from leftward.auditing.zoo import faults
from leftward.training.objective import shift

PLANTED = [
    (laws.future_leaves_past_alone, faults.peek),
    (laws.future_has_no_gradient, faults.peek),
    (laws.future_has_no_gradient, faults.whisper),
    (laws.all_within_reach_is_seen, faults.hide_the_last_word),
    (laws.steps_equal_one_pass, faults.misplace_steps),
    (laws.rows_do_not_meet, faults.share_statistics),
    (laws.paths_agree, faults.flatter_the_kernel),
    (laws.reordered_rows_go_on, faults.lose_values),
]


@pytest.mark.parametrize(("law", "fault"), PLANTED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("encoder", ["with a source", "without"])
def test_a_planted_fault_is_caught(law, fault, encoder):
    model = a_model() if encoder == "with a source" else a_model(encoder=None)
    sample = draw_sample(model.settings, seed=2)
    assert law(model, sample).holds
    fault(model)
    assert not law(model, sample).holds


def test_a_whisper_changes_no_bit():
    model = a_model()
    faults.whisper(model)
    assert laws.future_leaves_past_alone(model, draw_sample(model.settings, seed=2)).holds


def test_a_mask_forgotten_in_training_is_caught():
    model = a_model().train()
    sample = draw_sample(model.settings, seed=3, rows=2, longest=6)
    lesson = shift(sample.rows[:1], sample.sources[:1])
    assert laws.parallel_equals_sequential(model, lesson).holds
    faults.unmask_in_training(model)
    assert not laws.parallel_equals_sequential(model, lesson).holds


@pytest.mark.parametrize("broken", [faults.shift_never, faults.shift_twice])
def test_a_wrong_shift_is_caught(broken):
    model = a_model()
    sample = draw_sample(model.settings, seed=8)
    assert not laws.copying_does_not_pay(broken, sample, model.settings.vocabulary).holds


def test_every_law_has_its_fault():
    about_models = {
        name for name in vars(laws) if not name.startswith("_") and hasattr(getattr(laws, name), "__code__")
    }
    caught = {law.__name__ for law, _ in PLANTED}
    # The first two have tests of their own above; exact arithmetic has its control in test_laws.
    elsewhere = {
        "copying_does_not_pay",
        "parallel_equals_sequential",
        "exact_rows_have_the_same_bits",
        "count_differing_rows",
    }
    borrowed = {name for name in about_models if getattr(laws, name).__module__ != laws.__name__}
    assert about_models - borrowed == caught | elsewhere
