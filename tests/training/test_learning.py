"""One step, and many: in parts or whole, clipped, decayed, skipped; and validation, however it is cut."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from leftward.errors import LeftwardError
from leftward.model.transformer import Transformer
from leftward.settings import Model, Stack, Training
from leftward.text.samples import Counts
from leftward.text.stream import Batch, Place
from leftward.training import loop
from leftward.training.loop import Learned, Logged, Progress, Validated, learn, lesson_of, run, validate
from leftward.training.optimizer import clip, make_optimizer, optimizer_state, put_optimizer_state

VOCABULARY = 23
TRAINING = Training(
    steps=12, batch_tokens=999, learning_rate=0.01, warm_up=3, validate_every=4, save_every=5, log_every=2
)


def make_model(*, pair: bool, dropout: float = 0.0, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    stack = Stack(layers=2, heads=2, feed_forward=24)
    settings = Model(
        vocabulary=VOCABULARY,
        width=8,
        decoder=stack,
        encoder=stack if pair else None,
        dropout=dropout,
        output_bias=True,
    )
    return Transformer(settings).double()


def make_batch(seed: int, *, pair: bool, rows: int = 17, number: int = 0) -> Batch:
    chance = np.random.default_rng(seed)

    def draw(least: int) -> list[np.ndarray]:
        lengths = chance.integers(least, 12, rows)
        return [chance.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]

    return Batch(draw(1) if pair else None, draw(2), Place(0, number), Place(0, number + 1), Counts(samples=rows))


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("at_once", [1, 10, 64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_in_parts_is_the_step_taken_whole(pair: bool, at_once: int, smoothing: float) -> None:
    whole, parted = make_model(pair=pair), make_model(pair=pair)
    training = replace(TRAINING, smoothing=smoothing, weight_decay=0.1, clip=0.7)
    parts = replace(training, tokens_at_once=at_once)
    optimizers = make_optimizer(whole, training), make_optimizer(parted, parts)
    for step in range(1, 6):
        batch = make_batch(step, pair=pair)
        assert batch.predicted > at_once  # at 1 most parts are empty, because there are fewer rows than tokens
        loss, norm = learn(whole, optimizers[0], batch, training, step)
        loss_in_parts, norm_in_parts = learn(parted, optimizers[1], batch, parts, step)
        torch.testing.assert_close(loss_in_parts, loss, rtol=1e-6, atol=0)
        torch.testing.assert_close(norm_in_parts, norm, rtol=1e-11, atol=0)
    after = weights(parted)
    for name, weight in weights(whole).items():
        # Adam divides by the root of the squared gradient, so a gradient of nearly zero magnifies its rounding.
        torch.testing.assert_close(after[name], weight, rtol=1e-7, atol=1e-9)


def test_the_loss_of_a_step_is_the_sum_over_its_predictions() -> None:
    model, batch = make_model(pair=True), make_batch(1, pair=True)
    lesson = lesson_of(batch, "cpu")
    expected = functional.cross_entropy(
        model.scores(model(lesson.inputs, lesson.source)), lesson.labels, reduction="sum"
    )
    loss, norm = learn(model, make_optimizer(model, TRAINING), batch, TRAINING, 1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert norm > 0


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    """Rows cut otherwise, or a part that counts by its rows and not its tokens, would give another."""
    model, batch = make_model(pair=False), make_batch(1, pair=False)
    lesson = lesson_of(batch, "cpu")
    functional.cross_entropy(model.scores(model(lesson.inputs)), lesson.labels).backward()
    expected = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
    model.zero_grad()
    norm = learn(model, make_optimizer(model, TRAINING), batch, replace(TRAINING, tokens_at_once=30), 1)[1]
    torch.testing.assert_close(norm, expected)


def test_the_rate_of_a_step_is_the_schedule_s() -> None:
    model, batch = make_model(pair=False), make_batch(1, pair=False)
    optimizer = make_optimizer(model, TRAINING)
    before = weights(model)
    learn(model, optimizer, batch, TRAINING, 2)
    assert {group["lr"] for group in optimizer.param_groups} == {0.01 * 2 / 3}
    # Adam's first step moves every weight that has a gradient by the rate.
    moved = max((weight - before[name]).abs().max().item() for name, weight in weights(model).items())
    assert moved == pytest.approx(0.01 * 2 / 3, rel=1e-4)


@pytest.mark.parametrize("largest", [1e-3, 0.5, 1e6])
def test_clipping(largest: float) -> None:
    model = make_model(pair=True)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    norm = clip(model, largest)
    torch.testing.assert_close(norm, gradients.norm())
    clipped = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    torch.testing.assert_close(clipped, gradients * min(1.0, largest / norm.item()), rtol=1e-5, atol=0)


def test_weight_decay_spares_biases_and_norms() -> None:
    model = make_model(pair=True)
    training = replace(TRAINING, weight_decay=0.5)
    optimizer = make_optimizer(model, training)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))
            weight.grad = torch.zeros_like(weight)
    before = weights(model)
    optimizer.step()
    spared = 0
    for name, weight in model.named_parameters():
        is_spared = "norm" in name or name.endswith("bias")
        factor = 1.0 if is_spared else 1 - training.learning_rate * training.weight_decay
        torch.testing.assert_close(weight.detach(), before[name] * factor)
        spared += is_spared
    assert 0 < spared < len(before)


def test_the_optimizer_comes_back_with_its_memory() -> None:
    model = make_model(pair=True)
    optimizer = make_optimizer(model, TRAINING)
    for step in (1, 2, 3):
        learn(model, optimizer, make_batch(step, pair=True), TRAINING, step)
    other = copy.deepcopy(model)
    again = make_optimizer(other, TRAINING)
    state = {name: tensor.clone() for name, tensor in optimizer_state(model, optimizer).items()}
    put_optimizer_state(other, again, state, step=3, where="here")
    for step in (4, 5):
        for one, steps in ((model, optimizer), (other, again)):
            learn(one, steps, make_batch(step, pair=True), TRAINING, step)
    for name, weight in weights(other).items():
        assert torch.equal(weight, weights(model)[name])
    state.pop(next(iter(state)))
    with pytest.raises(LeftwardError, match="missing or of another shape") as caught:
        put_optimizer_state(other, again, state, step=3, where="here")
    assert caught.value.where == "here"


def batches(place: Place) -> Iterator[Batch]:
    """An endless stream."""
    return (make_batch(number, pair=False, number=number) for number in count(place.batch))


Spoil = Callable[[Any], Any]
SPOILT: dict[str, Spoil] = {
    "loss and gradient": lambda loss: loss._replace(total=loss.total * math.nan, plain=loss.plain * math.nan),
    "gradient": lambda loss: loss._replace(total=loss.total * math.inf),
    "loss": lambda loss: loss._replace(plain=loss.plain * math.inf),
}


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int], how: Spoil) -> list[int]:
    """Let the loss of some steps be no number; returns a list that counts the steps."""
    loss_of, taken = loop.loss_of, [0]

    def spoiled(model: Transformer, lesson: Any, *, smoothing: float = 0.0) -> Any:
        loss = loss_of(model, lesson, smoothing=smoothing)
        if not model.training:
            return loss
        taken[0] += 1
        return how(loss) if taken[0] in steps else loss

    monkeypatch.setattr(loop, "loss_of", spoiled)
    return taken


@pytest.mark.parametrize("what", SPOILT)
def test_a_step_without_a_number_moves_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {2, 3, 6}, SPOILT[what])
    model = make_model(pair=False)
    optimizer = make_optimizer(model, TRAINING)
    progress, seen = Progress(), weights(model)
    logged: list[tuple[int, float]] = []
    for event in run(model, optimizer, batches, None, TRAINING, progress):
        if isinstance(event, Logged):
            logged.append((progress.step, event.loss))
        if not isinstance(event, Learned):
            continue
        now = weights(model)
        is_moved = any(not torch.equal(now[name], seen[name]) for name in now)
        assert is_moved == (progress.step not in (2, 3, 6))
        assert all(weight.isfinite().all() for weight in now.values())
        assert all(tensor.isfinite().all() for tensor in optimizer_state(model, optimizer).values())
        seen = now
    assert progress.step == 12
    assert (progress.skipped, progress.skipped_in_row) == (3, 0)
    assert [step for step, _ in logged] == [2, 4, 6, 8, 10, 12]
    assert all(math.isfinite(loss) for _, loss in logged)
    # What the optimizer counts is what a run that goes on gives back to it.
    assert {state["step"].item() for state in optimizer.state.values()} == {12 - 3}


def test_three_such_steps_in_a_row_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {2, 5, 6, 8, 9, 10}, SPOILT["loss and gradient"])
    model, progress = make_model(pair=False), Progress()
    before = None
    with pytest.raises(LeftwardError, match="3 steps in a row") as caught:
        for event in run(model, make_optimizer(model, TRAINING), batches, None, TRAINING, progress):
            if isinstance(event, Learned) and progress.step == 7:
                before = weights(model)
    assert progress.step == 10
    assert caught.value.where == "step 10, window 0 batch 9 of the data"
    assert "learning rate" in caught.value.hint
    assert before is not None
    assert all(torch.equal(weight, before[name]) for name, weight in weights(model).items())


def test_a_run_says_what_happens_when() -> None:
    """Rows, validations and saves at their steps and after the last, in the order that a resume relies on."""
    model = make_model(pair=False)
    held = [make_batch(99, pair=False)]
    events, progress = [], Progress()
    for event in run(model, make_optimizer(model, TRAINING), batches, lambda: held, TRAINING, progress):
        events.append((progress.step, type(event).__name__))
    due = {"Logged": (2, 4, 6, 8, 10, 12), "Validated": (4, 8, 12), "Due": (5, 10, 12), "Learned": range(1, 13)}
    assert events == [(step, name) for step in range(1, 13) for name, steps in due.items() if step in steps]


def test_a_row_holds_the_mean_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(pair=False)
    training = replace(TRAINING, log_every=3, steps=7)
    twin = copy.deepcopy(model)
    optimizer = make_optimizer(twin, training)
    steps = [
        (learn(twin, optimizer, batch, training, step)[0].item(), batch.predicted)
        for step, batch in enumerate(islice(batches(Place()), 7), start=1)
    ]
    progress, logged = Progress(), []
    for event in run(model, make_optimizer(model, training), batches, None, training, progress):
        if isinstance(event, Logged):
            logged.append((progress.step, event.loss, progress.target_tokens))
    for (step, loss, tokens), (first, last) in zip(logged, ((0, 3), (3, 6), (6, 7)), strict=True):
        assert step == last
        assert tokens == sum(predicted for _, predicted in steps[:last])
        some = steps[first:last]
        assert loss == pytest.approx(sum(loss for loss, _ in some) / sum(predicted for _, predicted in some))


def test_the_best_is_the_first_of_the_lowest(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([5.0, 4.0, math.nan, 4.0, 3.0, math.inf])
    monkeypatch.setattr(loop, "validate", lambda *_: next(losses))
    model, progress = make_model(pair=False), Progress()
    training = replace(TRAINING, validate_every=2)
    best = [
        (progress.step, event.is_best)
        for event in run(model, make_optimizer(model, training), batches, lambda: [], training, progress)
        if isinstance(event, Validated)
    ]
    assert best == [(2, True), (4, True), (6, False), (8, False), (10, True), (12, False)]
    assert (progress.best_loss, progress.best_step) == (3.0, 10)


@pytest.mark.parametrize("pair", [True, False])
def test_validation_does_not_depend_on_how_it_is_cut(pair: bool) -> None:
    model = make_model(pair=pair, dropout=0.4)
    whole = make_batch(3, pair=pair, rows=40)
    summed, tokens = 0.0, 0
    model.eval()
    for row in range(40):
        lesson = lesson_of(whole.share(row, 40), "cpu")
        scores = model.scores(model(lesson.inputs, lesson.source))
        summed += functional.cross_entropy(scores, lesson.labels, reduction="sum").item()
        tokens += lesson.count
    model.train()
    assert tokens == whole.predicted
    for parts in (1, 2, 7, 40):
        loss = validate(model, [whole.share(part, parts) for part in range(parts)], TRAINING)
        assert loss == pytest.approx(summed / tokens, rel=1e-12)
        assert model.training
    model.eval()
    validate(model, [whole], TRAINING)
    assert not model.training
