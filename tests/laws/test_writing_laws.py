"""Every law of writing holds for every mix of parts and every strategy, and catches the faults planted for it."""

from dataclasses import replace

import pytest
import torch
from tests.laws.models import CHOICES, a_model, build, describe, settings_of

from leftward.auditing import writing_laws as laws
from leftward.auditing.writing_laws import draw_task
from leftward.auditing.zoo import writing_faults as faults
from leftward.decoding.engine import Engine
from leftward.decoding.scorer import Scorer
from leftward.model.attention import forced_path
from leftward.settings import Beam, Greedy, Sample

GREEDY, BEAM, SAMPLE = STRATEGIES = Greedy(), Beam(size=4, n_best=2), Sample(seed=2)

FOR_EVERY_STRATEGY = [
    laws.scores_follow_their_formula,
    laws.writing_stops,
    laws.other_rows_do_not_matter,
    laws.writing_equals_reading_anew,
    laws.a_model_agrees_with_itself,
]
WITH_THEIR_OWN = [
    laws.narrow_ways_are_one,
    laws.open_filters_change_nothing,
    laws.filters_keep_what_they_say,
    laws.more_outputs_leave_the_best_alone,
]

each_choice = pytest.mark.parametrize("choice", CHOICES, ids=describe)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)


def task_for(model, strategy, seed=4, longest=8):
    """A task of which about half of the rows end, and others reach their limit."""
    task = draw_task(model.settings, GREEDY, None, seed, longest=longest)
    engine = Engine(Scorer([model]), GREEDY, None)
    texts = [finished.outputs[0].tokens[:-1] for finished in engine.write(task.requests)]
    half = len(texts) / 2
    end = min(range(model.settings.vocabulary), key=lambda word: abs(sum(word in text for text in texts) - half))
    return replace(task, strategy=strategy, end=end)


@pytest.mark.parametrize("law", FOR_EVERY_STRATEGY, ids=lambda law: law.__name__)
@each_strategy
@each_choice
def test_a_law_holds_for_every_strategy(law, strategy, choice):
    model = build(settings_of(choice))
    with forced_path(choice["path"]):
        finding = law(model, task_for(model, strategy))
    assert finding.holds, finding


@pytest.mark.parametrize("law", WITH_THEIR_OWN, ids=lambda law: law.__name__)
@each_choice
def test_a_law_of_some_strategies_holds(law, choice):
    model = build(settings_of(choice))
    with forced_path(choice["path"]):
        finding = law(model, task_for(model, GREEDY))
    assert finding.holds, finding


@pytest.mark.parametrize("strategy", [BEAM, SAMPLE], ids=["Beam", "Sample"])
@each_choice
def test_exact_writing_has_the_same_bits(strategy, choice):
    model = build(settings_of(choice), dtype=torch.float32)
    finding = laws.exact_writing_has_the_same_bits(model, task_for(model, strategy))
    assert finding.holds, finding


def a_lively_model(**changes):
    """A model that does not say the same word for ever."""
    model = a_model(norm_place="before", tie="none", **changes)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.3)
        model.output.weight.copy_(model.embedding.words.weight.roll(7, 0))
    return model


PLANTED = [
    (laws.narrow_ways_are_one, faults.end_from_afar, GREEDY),
    (laws.open_filters_change_nothing, faults.cut_the_tail, SAMPLE),
    (laws.open_filters_change_nothing, faults.draw_by_slot, SAMPLE),
    (laws.filters_keep_what_they_say, faults.keep_one_too_many, SAMPLE),
    (laws.filters_keep_what_they_say, faults.keep_one_too_few, SAMPLE),
    (laws.scores_follow_their_formula, faults.forget_to_reorder, BEAM),
    (laws.scores_follow_their_formula, faults.end_for_nothing, BEAM),
    (laws.scores_follow_their_formula, faults.miscount_lengths, BEAM),
    *((laws.writing_stops, faults.overrun_the_limit, strategy) for strategy in STRATEGIES),
    *((laws.writing_stops, faults.write_on_after_the_end, strategy) for strategy in STRATEGIES),
    (laws.more_outputs_leave_the_best_alone, faults.stop_when_asked_for_less, BEAM),
    (laws.other_rows_do_not_matter, faults.draw_by_slot, SAMPLE),
    *((laws.other_rows_do_not_matter, faults.reuse_slots_as_they_are, strategy) for strategy in STRATEGIES),
    *((laws.writing_equals_reading_anew, faults.forget_the_prompt, strategy) for strategy in STRATEGIES),
    (laws.writing_equals_reading_anew, faults.forget_to_reorder, BEAM),
    (laws.a_model_agrees_with_itself, faults.multiply_models, SAMPLE),
    (laws.a_model_agrees_with_itself, faults.reorder_one_model, BEAM),
]


@pytest.mark.parametrize(
    ("law", "fault", "strategy"), PLANTED, ids=lambda each: getattr(each, "__name__", type(each).__name__)
)
@pytest.mark.parametrize("encoder", ["with a source", "without"])
def test_a_planted_fault_is_caught(law, fault, strategy, encoder):
    model = a_lively_model() if encoder == "with a source" else a_lively_model(encoder=None)
    tasks = [task_for(model, strategy, seed, longest=12) for seed in (1, 2)]
    assert all(law(model, task).holds for task in tasks)
    with fault():
        assert not all(law(model, task).holds for task in tasks)


def test_sources_left_behind_are_caught():
    model = a_lively_model()
    task = task_for(model, GREEDY, longest=12)
    assert laws.other_rows_do_not_matter(model, task).holds
    with faults.leave_sources_behind():
        assert not laws.other_rows_do_not_matter(model, task).holds


def test_forgotten_exactness_is_caught():
    model = a_lively_model().float()
    task = task_for(model, GREEDY)
    assert laws.exact_writing_has_the_same_bits(model, task).holds
    with faults.forget_exactness():
        assert not laws.exact_writing_has_the_same_bits(model, task).holds


def test_every_law_and_every_fault_is_put_to_the_test():
    def public(module):
        return {
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__ and callable(value) and name[0].islower()
        }

    planted = {(law.__name__, fault.__name__) for law, fault, _ in PLANTED}
    planted.add(("exact_writing_has_the_same_bits", "forget_exactness"))
    planted.add(("other_rows_do_not_matter", "leave_sources_behind"))
    assert public(laws) - {"draw_task"} == {law for law, _ in planted}
    assert {name for name in public(faults) if not name.startswith("_")} == {fault for _, fault in planted}
