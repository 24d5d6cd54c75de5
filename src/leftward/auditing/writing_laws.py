"""Truths that hold for whatever is written, by any model and any strategy. Each says how far off they are.

A law sees texts come out of the engine, and judges them by what the model says of whole rows, read in one pass and
without a cache. It shares no arithmetic with what it judges.

Laws want a model in evaluation mode and float64 unless they say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leftward.auditing.specimens import draw_sample
from leftward.auditing.verdict import Finding, Worst
from leftward.decoding.draws import draw
from leftward.decoding.engine import Engine
from leftward.decoding.rows import Output, Request
from leftward.decoding.scorer import Scorer
from leftward.model.exact import exact
from leftward.model.transformer import Transformer
from leftward.packed import Packed, pack, unpack
from leftward.settings import Beam, Greedy, Model, Sample, Strategy

ROUNDING = 1e-10

Texts = dict[tuple[int, int], list[Output]]  # by row and sample


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to write, the token that ends them, and the strategy."""

    requests: Sequence[Request]
    end: int | None
    strategy: Strategy


def draw_task(settings: Model, strategy: Strategy, end: int | None, seed: int = 0, *, longest: int = 8) -> Task:
    """Random prompts and limits of uneven lengths, and sources where the model reads any.

    >>> from leftward.settings import Stack
    >>> task = draw_task(Model(vocabulary=9, width=8, decoder=Stack(heads=2)), Greedy(), end=2)
    >>> [len(request.prompt) for request in task.requests][:2], max(request.limit for request in task.requests)
    ([8, 1], 8)
    """
    drawn = draw_sample(settings, seed, rows=4, longest=longest)
    limits = np.random.default_rng(seed).integers(1, longest + 1, size=len(drawn.rows))
    limits[-1] = longest
    requests = []
    for place, row in enumerate(drawn.rows):
        source = None if drawn.sources is None else drawn.sources[place].tolist()
        # A row's number is not that of the place it happens to stand in.
        requests.append(Request(3 + 2 * place, row.tolist(), int(limits[place]), source))
    return Task(requests, end, strategy)


def narrow_ways_are_one(model: Transformer, task: Task) -> Finding:
    """Greedy writing, a beam of one without a length penalty, and a draw from the likeliest word write the same."""
    worst = Worst()
    greedy = _write(Scorer([model]), replace(task, strategy=Greedy()))
    for strategy in (Beam(size=1, length_penalty=0), Sample(top_k=1)):
        other = _write(Scorer([model]), replace(task, strategy=strategy))
        _compare(worst, greedy, other, type(strategy).__name__)
    return worst.finding("greedy equals a beam of one equals top-k of one", ROUNDING)


def open_filters_change_nothing(model: Transformer, task: Task) -> Finding:
    """A temperature of 1, a top-k of 0 or of all words and a top-p of 1 are a plain draw; counts words that are not."""
    worst = Worst()
    for settings in (Sample(seed=3), Sample(seed=3, top_k=model.settings.vocabulary)):
        worst.see(_count_other_draws(model, replace(task, strategy=settings), Sample(seed=3)), str(settings))
    return worst.finding("open filters change nothing", 0.0)


def filters_keep_what_they_say(model: Transformer, task: Task) -> Finding:
    """Words are drawn from the k likeliest, or the smallest set of a share p; counts those that are not."""
    worst = Worst()
    for settings in (
        Sample(temperature=0.5),
        Sample(temperature=2.0, top_k=4),
        Sample(top_p=0.3),
        Sample(top_p=0.8),
        Sample(temperature=1.5, top_k=12, top_p=0.7),
    ):
        worst.see(_count_other_draws(model, replace(task, strategy=settings), settings), str(settings))
    return worst.finding("filters keep what they say", 0.0)


def scores_follow_their_formula(model: Transformer, task: Task) -> Finding:
    """A total is the sum of the model's own log-probabilities; a beam's score is that over a power of the length."""
    worst = Worst()
    texts = _write(Scorer([model]), task)
    pairs = [(request, output) for request in task.requests for output in texts[request.row, request.sample]]
    said = _say(model, [(request, output.tokens) for request, output in pairs])
    penalty = task.strategy.length_penalty if isinstance(task.strategy, Beam) else 0.0
    for (request, output), log_probabilities in zip(pairs, said, strict=True):
        total = log_probabilities.gather(1, torch.tensor(output.tokens)[:, None]).sum().item()
        score = total / len(output.tokens) ** penalty
        worst.see(_apart(total, output.total), f"the total of row {request.row}")
        worst.see(_apart(score, output.score), f"the score of row {request.row}")
    return worst.finding("scores follow their formula", ROUNDING)


def writing_stops(model: Transformer, task: Task) -> Finding:
    """Every row is written once; its texts stop at the end token, or at their limit, and nowhere else.

    The finding counts the texts that do not.
    """
    worst, wrong = Worst(), 0
    engine = Engine(Scorer([model]), task.strategy, task.end, groups=len(task.requests))
    written = list(engine.write(task.requests))
    missing = {id(request) for request in task.requests} ^ {id(finished.request) for finished in written}
    wrong += len(missing) + len(written) - len(task.requests)
    worst.see(float(wrong), "rows missing, or written twice")
    for request, outputs in written:
        # The last token of a row is written and never read, so it may stand just behind the context.
        limit = min(request.limit, model.settings.context - len(request.prompt) + 1)
        wrong += not outputs
        for output in outputs:
            before, last = output.tokens[:-1], output.tokens[-1]
            has_stopped = last == task.end or len(output.tokens) == limit
            wrong += len(output.tokens) > limit or task.end in before or not has_stopped
        worst.see(float(wrong), f"row {request.row}: {[output.tokens for output in outputs]}")
    return worst.finding("writing stops at the end token or at the limit", 0.0)


def more_outputs_leave_the_best_alone(model: Transformer, task: Task) -> Finding:
    """Who asks a beam for more texts gets the same ones first, then worse ones, and none of them twice."""
    worst = Worst()
    for penalty in (0.0, 1.0):
        beam = Beam(size=4, length_penalty=penalty, n_best=4)
        whole = _write(Scorer([model]), replace(task, strategy=beam))
        for outputs in whole.values():
            scores = [output.score for output in outputs]
            worst.see(0.0 if scores == sorted(scores, reverse=True) else math.inf, "the best does not come first")
            texts = {tuple(output.tokens) for output in outputs}
            worst.see(0.0 if len(texts) == len(outputs) else math.inf, "a text comes twice")
        for count in range(1, beam.n_best):
            some = _write(Scorer([model]), replace(task, strategy=replace(beam, n_best=count)))
            first = {key: outputs[:count] for key, outputs in whole.items()}
            _compare(worst, first, some, f"{count} outputs, penalty {penalty}")
    return worst.finding("more outputs leave the best alone", ROUNDING)


def other_rows_do_not_matter(model: Transformer, task: Task) -> Finding:
    """A row is written alike in any order of rows and any number of groups, and by lot too."""
    worst = Worst()
    alike = _write(Scorer([model]), task)
    for groups, other in _other_batches(task):
        _compare(worst, alike, _write(Scorer([model]), other, groups), f"{len(other.requests)} rows, {groups} groups")
    return worst.finding("other rows do not matter", ROUNDING)


def exact_writing_has_the_same_bits(model: Transformer, task: Task) -> Finding:
    """Under exact arithmetic every total has the same bits in any order and any number of groups, in any dtype."""
    worst = Worst()
    with exact():
        alike = _write(Scorer([model]), task)
        for groups, other in _other_batches(task):
            _compare(
                worst, alike, _write(Scorer([model]), other, groups), f"{len(other.requests)} rows, {groups} groups"
            )
    return worst.finding("exact writing has the same bits", 0.0)


def writing_equals_reading_anew(model: Transformer, task: Task) -> Finding:
    """With a cache the same is written as by reading every prefix from its beginning for every token."""
    worst = Worst()
    # Fewer groups than rows, so that rows enter where others were.
    anew = _write(Anew([model]), task, groups=3)
    _compare(worst, anew, _write(Scorer([model]), task, groups=3), "with a cache")
    return worst.finding("writing equals reading anew", ROUNDING)


def a_model_agrees_with_itself(model: Transformer, task: Task) -> Finding:
    """An ensemble of one model twice writes what the model writes."""
    worst = Worst()
    both = _write(Scorer([model, model]), task)
    _compare(worst, _write(Scorer([model]), task), both, "twice the same model")
    return worst.finding("a model agrees with itself", ROUNDING)


class Anew(Scorer):
    """Gives scores without a cache: it remembers the words of every slot, and reads all of them for every token."""

    def allocate(self, *, slots: int, capacity: int, sources: int, source_capacity: int, chunk: int) -> None:
        """Nothing is written yet."""
        del capacity, source_capacity, chunk
        self._rows: list[list[int]] = [[] for _ in range(slots)]
        self._sources: list[list[int]] = [[] for _ in range(sources)]

    def read(self, sources: Packed) -> None:
        """Remember sources."""
        for place, source in _rows_of(sources):
            self._sources[place] = source

    def prefill(self, prompts: Packed) -> None:
        """Remember the beginnings of rows."""
        for slot, prompt in _rows_of(prompts):
            self._rows[slot] = prompt

    def advance(self, batch: Packed) -> Tensor:
        """Scores (S, V) of the word after each slot's row."""
        for slot, (token, at) in enumerate(zip(batch.ids.tolist(), batch.at.tolist(), strict=True)):
            self._rows[slot] = [*self._rows[slot][:at], token]
        source = pack(self._sources).to(self.device) if self._sources else None
        target = pack(self._rows, reads=batch.reads.tolist()).to(self.device)
        (model,) = self._models
        ends = torch.tensor([len(row) for row in self._rows], device=self.device).cumsum(dim=0) - 1
        return model.scores(model(target, source)[ends])

    def reorder(self, parents: Tensor) -> None:
        """Let slot i go on from slot parents[i]."""
        self._rows = [self._rows[parent] for parent in parents.tolist()]

    def narrow(self, slots: Tensor, sources: Tensor) -> None:
        """Keep only these slots and sources, in this order."""
        self._rows = [self._rows[slot] for slot in slots.tolist()]
        self._sources = [self._sources[place] for place in sources.tolist()] if self._sources else []


def _rows_of(batch: Packed) -> list[tuple[int, list[int]]]:
    rows = [int(part[0]) for part in unpack(batch.row, batch)]
    return list(zip(rows, [part.tolist() for part in unpack(batch.ids, batch)], strict=True))


def _write(scorer: Scorer, task: Task, groups: int = 0) -> Texts:
    """What is written of every row; all rows side by side by default."""
    engine = Engine(scorer, task.strategy, task.end, groups or len(task.requests))
    return {(request.row, request.sample): outputs for request, outputs in engine.write(task.requests)}


def _other_batches(task: Task) -> list[tuple[int, Task]]:
    """The same rows in other orders and in how many groups, and each row alone."""
    random = np.random.default_rng(11)
    batches = [(1, replace(task, requests=[request])) for request in task.requests]
    for groups in (1, 3, len(task.requests)):
        order = random.permutation(len(task.requests))
        batches.append((groups, replace(task, requests=[task.requests[place] for place in order])))
    return batches


def _compare(worst: Worst, right: Texts, texts: Texts, where: str) -> None:
    """Texts must be equal, their totals and scores nearly so."""
    for key, outputs in texts.items():
        here = f"row {key[0]}, sample {key[1]}, {where}"
        is_same = [output.tokens for output in right[key]] == [output.tokens for output in outputs]
        worst.see(0.0 if is_same else math.inf, here)
        for one, other in zip(right[key], outputs, strict=False):
            worst.see(_apart(one.total, other.total), here)
            worst.see(_apart(one.score, other.score), here)


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(1.0, abs(one))


@torch.no_grad()
def _say(model: Transformer, texts: list[tuple[Request, list[int]]]) -> list[Tensor]:
    """What the model says of each token of each text, in one pass: log-probabilities (tokens, V), on the host."""
    device = model.output.weight.device
    source = None
    if model.settings.has_encoder:
        source = pack([request.source or [] for request, _ in texts]).to(device)
    target = pack([[*request.prompt, *tokens[:-1]] for request, tokens in texts]).to(device)
    scores = model.scores(model(target, source)).double().log_softmax(dim=-1).cpu()
    return [part[-len(tokens) :] for part, (_, tokens) in zip(unpack(scores, target), texts, strict=True)]


def _count_other_draws(model: Transformer, task: Task, stated: Sample) -> float:
    """How many words of what is written are not the ones that a draw by the stated settings gives there."""
    texts = _write(Scorer([model]), task)
    pairs = [(request, texts[request.row, request.sample][0].tokens) for request in task.requests]
    others = 0
    for (request, tokens), said in zip(pairs, _say(model, pairs), strict=True):
        place = torch.arange(len(tokens))
        row, sample = torch.full_like(place, request.row), torch.full_like(place, request.sample)
        lots = draw(stated.seed, row, sample, place).tolist()
        drawn = [_draw_word(np.exp(line.numpy()), lot, stated) for line, lot in zip(said, lots, strict=True)]
        others += sum(word != token for word, token in zip(drawn, tokens, strict=True))
    return float(others)


def _draw_word(shares: np.ndarray, lot: float, settings: Sample) -> int:
    """The word on which the lot falls, the likeliest first, out of those that the settings keep."""
    shares = shares ** (1 / settings.temperature)
    words = np.argsort(-shares, kind="stable")[: settings.top_k or None]
    line = np.cumsum(shares[words] / shares[words].sum())
    if settings.top_p < 1:
        line = line[: int(np.searchsorted(line, settings.top_p)) + 1]
    place = int(np.searchsorted(line / line[-1], lot, side="right"))
    return int(words[place])
