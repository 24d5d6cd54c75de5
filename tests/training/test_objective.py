"""The objective against torch's own cross-entropy, and that it never holds all scores."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from tests.laws.models import a_model
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from leftward.model.precision import computing_in
from leftward.model.transformer import Output
from leftward.settings import Model, Stack
from leftward.training import objective
from leftward.training.objective import Lesson, loss_of, project_and_score, shift

rows = some.lists(some.lists(some.integers(0, 99), min_size=2, max_size=7), min_size=1, max_size=6)


@given(rows, some.data())
def test_every_label_is_the_token_that_comes_next(rows, data):
    skipped = data.draw(some.lists(some.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    lesson = shift(rows, [row[::-1] for row in rows], uncounted=skipped)
    pairs = list(zip(lesson.inputs.ids.tolist(), lesson.labels.tolist(), strict=True))
    assert pairs == [pair for row in rows for pair in zip(row, row[1:], strict=False)]
    assert lesson.inputs.row.tolist() == [number for number, row in enumerate(rows) for _ in row[1:]]
    assert lesson.source.ids.tolist() == [token for row in rows for token in row[::-1]]
    assert lesson.count == sum(max(0, len(row) - 1 - skip) for row, skip in zip(rows, skipped, strict=True))
    assert shift(rows).source is None


def test_a_row_with_nothing_to_predict_is_refused():
    with pytest.raises(ValueError, match="row 1"):
        shift([[1, 2], [3]])


def test_a_lesson_moves_as_a_whole():
    lesson = shift([[1, 2, 3]], [[4]], uncounted=[1]).to("meta")
    tensors = (lesson.inputs.ids, lesson.labels, lesson.source.ids)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert shift([[1, 2]]).to("meta").source is None


def make_output(vocabulary=11, width=6, *, bias=True, scale=1.0, dtype=torch.float64):
    model = Model(
        vocabulary=vocabulary, width=width, output_bias=bias, logit_scale=scale, decoder=Stack(heads=1), tie="none"
    )
    output = Output(model, None).to(dtype)
    if bias:
        torch.nn.init.normal_(output.bias)
    return output


def draw(count, output, seed=0):
    """Random states and labels for an output."""
    torch.manual_seed(seed)
    vocabulary, width = output.weight.shape
    states = 2 * torch.randn(count, width, dtype=output.weight.dtype)
    return states.requires_grad_(), torch.randint(vocabulary, (count,))


def leaves_of(states, output):
    return [states, output.weight, *([] if output.bias is None else [output.bias])]


@pytest.mark.parametrize("count", [1, 6, 7, 8, 14, 23])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(("bias", "scale"), [(True, 1.0), (False, 0.3)])
def test_loss_and_gradients_are_those_of_cross_entropy(count, smoothing, bias, scale, monkeypatch):
    monkeypatch.setattr(objective, "CHUNK", 7)
    output = make_output(bias=bias, scale=scale)
    states, labels = draw(count, output)
    leaves = leaves_of(states, output)
    scores = output(states)
    expected = functional.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="sum")
    total, plain = project_and_score(states, labels, output, smoothing=smoothing)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(plain, functional.cross_entropy(scores, labels, reduction="sum").detach())
    assert not plain.requires_grad
    # A factor, so that a lost one shows.
    found = torch.autograd.grad(total * 0.37, leaves)
    for one, other in zip(found, torch.autograd.grad(expected * 0.37, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_chunks_of_the_real_size_in_float32():
    output = make_output(vocabulary=500, width=16, dtype=torch.float32)
    states, labels = draw(2 * objective.CHUNK + 3, output)
    leaves = leaves_of(states, output)
    expected = functional.cross_entropy(output(states), labels, label_smoothing=0.1)
    total, _ = project_and_score(states, labels, output, smoothing=0.1)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total / len(labels), expected)
    found = torch.autograd.grad(total / len(labels), leaves)
    for one, other in zip(found, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_bfloat16_it_is_near(smoothing):
    output = make_output(vocabulary=300, width=32, scale=0.5, dtype=torch.float32)
    states, labels = draw(objective.CHUNK + 9, output)
    leaves = leaves_of(states, output)
    exact = torch.autograd.grad(project_and_score(states, labels, output, smoothing=smoothing)[0], leaves)
    with computing_in("bfloat16"):
        total, plain = project_and_score(states, labels, output, smoothing=smoothing)
        near = torch.autograd.grad(total, leaves)
    expected, _ = project_and_score(states, labels, output, smoothing=smoothing)
    assert total.dtype == plain.dtype == torch.float32
    assert total.item() == pytest.approx(expected.item(), rel=3e-3)
    for one, other, leaf in zip(near, exact, leaves, strict=True):
        assert one.dtype == leaf.dtype
        assert (one - other).norm() < 0.02 * other.norm()


class Watch(TorchDispatchMode):
    """Notes the largest tensor that is made, and how many matrix products."""

    def __init__(self):
        super().__init__()
        self.largest = self.products = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        self.products += function.overloadpacket.__name__ in ("mm", "addmm", "addmm_")
        sizes = [one.numel() for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return made


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_scores_of_all_rows_never_stand_in_memory(smoothing, monkeypatch):
    monkeypatch.setattr(objective, "CHUNK", 16)
    output = make_output(vocabulary=1_000, width=4)
    states, labels = draw(600, output)
    with Watch() as watch:
        project_and_score(states, labels, output, smoothing=smoothing)[0].backward()
    assert watch.largest == 16 * 1_000
    with Watch() as watch:
        output(states)
    assert watch.largest == 600 * 1_000  # the watch would have seen it


def products(states, labels, output):
    with Watch() as watch:
        total, _ = project_and_score(states, labels, output, smoothing=0.1)
    return watch.products, total


def test_no_gradient_is_made_where_none_is_wanted(monkeypatch):
    monkeypatch.setattr(objective, "CHUNK", 8)
    output = make_output()
    states, labels = draw(20, output)
    assert products(states, labels, output)[0] == 9  # for each of three chunks: scores, to states, to weight
    for leaf in leaves_of(states, output):
        leaf.requires_grad_(False)
    made, total = products(states, labels, output)
    assert made == 3
    assert not total.requires_grad


def test_no_gradient_is_made_inside_no_grad(monkeypatch):
    monkeypatch.setattr(objective, "CHUNK", 8)
    output = make_output()
    states, labels = draw(20, output)
    with torch.no_grad():
        made, total = products(states, labels, output)
    assert not total.requires_grad
    assert made == 3


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("uncounted", [None, [0, 3, 1], [9, 0, 0]])
def test_the_loss_of_a_model(smoothing, tie, uncounted):
    model = a_model(tie=tie, output_bias=True, logit_scale=0.5)
    random = np.random.default_rng(1)
    rows, sources = ([random.integers(0, 30, length) for length in lengths] for lengths in ((6, 9, 2), (4, 1, 7)))
    lesson = shift(rows, sources, uncounted=uncounted)
    loss = loss_of(model, lesson, smoothing=smoothing)
    loss.total.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    # The plain way: all scores, labels that do not count marked as torch wants it.
    labels = lesson.labels.clone()
    if uncounted is not None:
        labels[~lesson.inputs.counts] = -100
    scores = model.scores(model(lesson.inputs, lesson.source))
    expected = functional.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.plain, functional.cross_entropy(scores, labels, reduction="sum").detach())
    assert loss.count == lesson.count == (labels != -100).sum()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=0, atol=1e-11)


def test_what_does_not_count_teaches_nothing():
    model = a_model(encoder=None)
    one, other = (shift([[1, 2, 3, 4]], uncounted=[2]) for _ in range(2))
    changed = Lesson(other.inputs, torch.tensor([9, 9, 4]))
    assert loss_of(model, one).total.item() == loss_of(model, changed).total.item()
    nothing = loss_of(model, shift([[1, 2, 3, 4]], uncounted=[3]))
    assert (nothing.total.item(), nothing.count) == (0.0, 0)
