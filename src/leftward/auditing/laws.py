"""Truths that hold for every decoder, whatever it is made of. Each takes a model and says how far off it is.

A law knows the model only from outside: it hands in tokens and compares what comes out. It shares no helper
with what it judges, least of all the rule of sight.

Laws want a model in evaluation mode and float64 unless they say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from leftward.auditing.specimens import Sample
from leftward.auditing.verdict import Finding, Worst
from leftward.model.attention import forced_path
from leftward.model.exact import exact
from leftward.model.transformer import Output, Transformer
from leftward.packed import Packed, pack, step, unpack
from leftward.settings import Model
from leftward.training.objective import Lesson, loss_of, project_and_score

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}


def future_leaves_past_alone(model: Transformer, sample: Sample) -> Finding:
    """Changing the token at t leaves every output before t unchanged, bit for bit."""
    worst = Worst()
    target, source = sample.target(), sample.source()
    vocabulary = model.settings.vocabulary
    with torch.no_grad():
        before = _outputs(model, target, source)
        for at in range(1, sample.longest):
            for other in (1, vocabulary // 2):
                ids = torch.where(target.at >= at, (target.ids + other) % vocabulary, target.ids)
                after = _outputs(model, target.with_ids(ids), source)
                past = target.at < at
                worst.see(_distance(before[past], after[past]), f"tokens from {at} on changed")
    return worst.finding("the future leaves the past alone", 0.0)


def future_has_no_gradient(model: Transformer, sample: Sample) -> Finding:
    """The gradient of the output at s by the input at t > s is exactly zero."""
    worst = Worst()
    target = sample.target()
    for at, gradient in _gradients_by_position(model, sample):
        beyond = gradient[target.at > at]
        if beyond.numel():
            worst.see(beyond.abs().max().item(), f"output at {at}")
    return worst.finding("the future has no gradient", 0.0)


def all_within_reach_is_seen(model: Transformer, sample: Sample) -> Finding:
    """Every output reacts to every earlier token within its reach, and to every token of its source.

    The finding counts the pairs that do not react.
    """
    worst, missing = Worst(), 0
    target, source = sample.target(), sample.source()
    reach = _reach(model.settings)
    for at, gradient in _gradients_by_position(model, sample):
        has_output = torch.tensor([len(row) > at for row in sample.rows], device=target.ids.device)
        due = (target.at <= at) & (target.at >= at - reach) & has_output[target.row]
        blind = due & (gradient.abs().amax(dim=1) == 0)
        missing += int(blind.sum())
        worst.see(float(missing), f"output at {at} does not see {target.at[blind].tolist()[:5]} of its row")
    if source is not None:
        for at, gradient in _gradients_by_position(model, sample, of_source=True):
            has_output = torch.tensor([len(row) > at for row in sample.rows], device=target.ids.device)
            blind = has_output[source.row] & (gradient.abs().amax(dim=1) == 0)
            missing += int(blind.sum())
            worst.see(float(missing), f"output at {at} does not see {source.at[blind].tolist()[:5]} of its source")
    return worst.finding("all within reach is seen", 0.0)


def steps_equal_one_pass(model: Transformer, sample: Sample) -> Finding:
    """Written step by step with a cache, in chunks of any size, the scores are those of one pass."""
    worst = Worst()
    scale = _scale(model, sample)
    for chunk in (1, 2, 3, 7):
        for first in (0, 1, sample.longest // 2):
            difference = _largest_step_difference(model, sample, first, chunk)
            worst.see(difference / scale, f"{first} tokens, then {chunk} at a time")
    return worst.finding("step by step equals one pass", ROUNDING[_dtype(model)])


def rows_do_not_meet(model: Transformer, sample: Sample) -> Finding:
    """A row alone gives what it gives among others, in any order."""
    worst = Worst()
    with torch.no_grad():
        for numbers, together in _row_orders(model, sample):
            for number, among in zip(numbers, together, strict=True):
                one = sample.only([number])
                alone = _outputs(model, one.target(), one.source())
                worst.see(_distance(alone, among) / _size(alone), f"row {number} in the order {numbers}")
    return worst.finding("a row alone equals the row among others", ROUNDING[_dtype(model)])


def exact_rows_have_the_same_bits(model: Transformer, sample: Sample) -> Finding:
    """Under exact arithmetic a row has the same bits alone and among others; the finding counts those that have not."""
    with exact():
        return Finding("exact rows have the same bits", float(count_differing_rows(model, sample)), 0.0)


def count_differing_rows(model: Transformer, sample: Sample) -> int:
    """How many rows have other bits alone than among others, over several orders."""
    differing = 0
    with torch.no_grad():
        for numbers, together in _row_orders(model, sample):
            for number, among in zip(numbers, together, strict=True):
                one = sample.only([number])
                differing += not torch.equal(_outputs(model, one.target(), one.source()), among)
    return differing


def paths_agree(model: Transformer, sample: Sample) -> Finding:
    """The fused attention kernel gives what the textbook path gives, in one pass and step by step."""
    worst = Worst()
    target, source = sample.target(), sample.source()
    with torch.no_grad():
        with forced_path("plain"):
            textbook = _outputs(model, target, source)
        with forced_path("fused"):
            kernel = _outputs(model, target, source)
            worst.see(_distance(textbook, kernel) / _size(textbook), "one pass")
    with forced_path("fused"):
        difference = _largest_step_difference(model, sample, 1, 1)
        worst.see(difference / _size(textbook), "step by step")
    return worst.finding("plain attention equals fused", ROUNDING[_dtype(model)])


def reordered_rows_go_on(model: Transformer, sample: Sample) -> Finding:
    """After a reorder every slot goes on from its parent's row, and sources stay where they are."""
    worst = Worst()
    source = sample.only([0]).source()
    rows = [np.resize(row, sample.longest) for row in sample.rows]
    count, written, device = len(rows), sample.longest - 1, sample.device
    random = np.random.default_rng(7)
    with torch.no_grad():
        for parents in (
            np.arange(count)[::-1].copy(),
            random.integers(0, count, count),
            random.permutation(count),
        ):
            cache = model.allocate(
                slots=count,
                capacity=sample.longest,
                sources=0 if source is None else 1,
                source_capacity=0 if source is None else len(source),
                chunk=written,
            )
            if source is not None:
                model.read(source, cache)
            reads = [0] * count
            model(pack([row[:written] for row in rows], reads=reads).to(device), cache=cache)
            cache.reorder(torch.from_numpy(parents).to(device))
            last = torch.tensor([int(row[-1]) for row in rows], device=device)
            at = torch.full((count,), written, device=device)
            after = model.scores(
                model(step(last, at, furthest=written, sources=0 if source is None else 1), cache=cache)
            )
            moved = [np.append(rows[parent][:written], rows[slot][-1]) for slot, parent in enumerate(parents)]
            target = pack(moved, reads=reads).to(device)
            direct = _outputs(model, target, source)[target.at == written]
            worst.see(_distance(direct, after) / _size(direct), f"slots go on from {parents.tolist()}")
    return worst.finding("a reorder moves whole rows", ROUNDING[_dtype(model)])


# What holds for a model by itself, trained or not.
OF_A_MODEL = (
    future_leaves_past_alone,
    future_has_no_gradient,
    all_within_reach_is_seen,
    steps_equal_one_pass,
    rows_do_not_meet,
    reordered_rows_go_on,
    paths_agree,
)

Shift = Callable[..., Lesson]


def copying_does_not_pay(shift: Shift, sample: Sample, vocabulary: int) -> Finding:
    """A model that repeats what it reads gets a bad loss, a perfect oracle a loss of zero.

    The finding is the oracle's loss, plus how far the copying model stays under the loss of a coin toss.
    """
    # Every token differs from the one before it, so that a copy is never right by chance.
    rows = [np.cumsum(1 + row % (vocabulary - 1)) % vocabulary for row in sample.rows if len(row) > 1]
    lesson = shift(rows)
    truth = torch.from_numpy(np.concatenate([row[1:] for row in rows]))
    given = torch.from_numpy(np.concatenate([row[:-1] for row in rows]))
    output = _table(vocabulary)
    sure = 1000.0

    def mean_loss(said: Tensor) -> float:
        states = torch.nn.functional.one_hot(said, vocabulary).double() * sure
        return (project_and_score(states, lesson.labels, output)[1] / len(said)).item()

    same_size = len(lesson.labels) == len(truth)
    oracle, copy = (mean_loss(truth), mean_loss(given)) if same_size else (math.inf, math.inf)
    return Finding("copying does not pay", oracle + max(0.0, math.log(2) - copy), 0.0, f"copying costs {copy:.3g} nats")


def parallel_equals_sequential(model: Transformer, lesson: Lesson, *, smoothing: float = 0.0) -> Finding:
    """All positions at once give the loss and the gradients of one position after the other.

    The sequential run reads each prefix by itself, given the true words, and takes the loss of its last
    output. The model must not drop anything at random; its mode is left as it is.
    """
    model.zero_grad()
    together = loss_of(model, lesson, smoothing=smoothing)
    together.total.backward()
    parallel = _gradients(model)
    model.zero_grad()
    total = 0.0
    device = lesson.labels.device
    rows = [part.cpu().numpy() for part in unpack(lesson.inputs.ids, lesson.inputs)]
    labels = unpack(lesson.labels, lesson.inputs)
    sources = (
        None if lesson.source is None else [part.cpu().numpy() for part in unpack(lesson.source.ids, lesson.source)]
    )
    for number, (row, right) in enumerate(zip(rows, labels, strict=True)):
        source = None if sources is None else pack([sources[number]]).to(device)
        for length in range(1, len(row) + 1):
            states = model(pack([row[:length]]).to(device), source)[-1:]
            loss = project_and_score(states, right[length - 1 : length], model.output, smoothing=smoothing)[0]
            loss.backward()
            total += loss.item()
    sequential = _gradients(model)
    model.zero_grad()
    worst = Worst()
    worst.see(abs(total - together.total.item()) / max(abs(total), 1.0), "the loss")
    for name, gradient in sequential.items():
        scale = max(gradient.abs().max().item(), 1.0)
        worst.see(_distance(gradient, parallel[name]) / scale, f"the gradient of {name}")
    return worst.finding("parallel training equals sequential", 1e-10)


def _outputs(model: Transformer, target: Packed, source: Packed | None) -> Tensor:
    return model.scores(model(target, source))


def _dtype(model: Transformer) -> torch.dtype:
    return model.output.weight.dtype


def _distance(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item() if one.numel() else 0.0


def _size(values: Tensor) -> float:
    return max(values.abs().max().item(), 1e-30)


def _scale(model: Transformer, sample: Sample) -> float:
    with torch.no_grad():
        return _size(_outputs(model, sample.target(), sample.source()))


def _table(vocabulary: int) -> Output:
    """An output projection that hands its states through."""
    from leftward.settings import Stack

    settings = Model(vocabulary=vocabulary, width=vocabulary, decoder=Stack(heads=1), tie="none")
    output = Output(settings, None).double()
    with torch.no_grad():
        output.weight.copy_(torch.eye(vocabulary))
    return output


def _reach(settings: Model) -> int:
    """How far back an output can see through all layers; without a window in any one of them, any distance."""
    windows = [settings.decoder.window_of(layer) for layer in range(settings.decoder.layers)]
    return 10**9 if None in windows else sum(window - 1 for window in windows if window is not None)


def _row_orders(model: Transformer, sample: Sample) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Several orders of the rows, and each row's outputs in that order."""
    random = np.random.default_rng(3)
    count = len(sample.rows)
    for numbers in ([*range(count)], [*range(count)][::-1], random.permutation(count).tolist()):
        some = sample.only(numbers)
        target = some.target()
        yield numbers, unpack(_outputs(model, target, some.source()), target)


def _gradients(model: Transformer) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in model.named_parameters()
    }


@contextmanager
def _embeddings(model: Transformer, *, of_source: bool) -> Iterator[list[Tensor]]:
    """Catch the embeddings of the next pass as leaves that take a gradient."""
    caught: list[Tensor] = []

    def catch(module: torch.nn.Module, arguments: tuple[Packed], output: Tensor) -> Tensor:
        del module, arguments
        caught.append(output.detach().requires_grad_())
        return caught[-1]

    embedding = model.source_embedding if of_source else model.embedding
    handle = embedding.register_forward_hook(catch)  # type: ignore[union-attr]
    try:
        yield caught
    finally:
        handle.remove()


def _gradients_by_position(
    model: Transformer, sample: Sample, *, of_source: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """For each position the gradient of all rows' outputs there, by the embedding of every token: (N, width)."""
    target, source = sample.target(), sample.source()
    with _embeddings(model, of_source=of_source) as caught:
        outputs = _outputs(model, target, source)
    # A random direction: a plain sum of outputs can have no gradient at all behind a norm.
    generator = torch.Generator().manual_seed(5)
    direction = torch.rand(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    for at in range(sample.longest):
        here = (target.at == at)[:, None]
        (gradient,) = torch.autograd.grad((outputs * direction * here).sum(), caught[0], retain_graph=True)
        yield at, gradient


def _largest_step_difference(model: Transformer, sample: Sample, first: int, chunk: int) -> float:
    """Read `first` tokens of every row at once, the others `chunk` at a time, and compare with one pass."""
    source, count = sample.source(), len(sample.rows)
    with torch.no_grad():
        whole = _outputs(model, sample.target(), source)
        expected = unpack(whole, sample.target())
        cache = model.allocate(
            slots=count,
            capacity=sample.longest,
            sources=0 if source is None else count,
            source_capacity=0 if source is None else source.furthest + 1,
            chunk=max(first, chunk),
        )
        if source is not None:
            model.read(source, cache)
        largest = 0.0
        cuts = [0, *range(first, sample.longest, chunk), sample.longest]
        for begin, end in pairwise(dict.fromkeys(cuts)):
            rows = [number for number, row in enumerate(sample.rows) if len(row) > begin]
            if chunk == 1 and end == begin + 1:
                # A true step: every slot reads one token, rows that are over read anything.
                ids = torch.tensor([int(row[min(begin, len(row) - 1)]) for row in sample.rows], device=sample.device)
                at = torch.full_like(ids, begin)
                batch = step(ids, at, furthest=begin, sources=0 if source is None else count)
                parts = dict(enumerate(unpack(model.scores(model(batch, cache=cache)), batch)))
            else:
                some = [sample.rows[number][begin:end] for number in rows]
                batch = pack(some, names=rows, starts=[begin] * len(rows)).to(sample.device)
                parts = dict(zip(rows, unpack(model.scores(model(batch, cache=cache)), batch), strict=True))
            for number in rows:
                difference = _distance(expected[number][begin:end], parts[number])
                largest = max(largest, difference) if difference == difference else math.inf
    return largest
