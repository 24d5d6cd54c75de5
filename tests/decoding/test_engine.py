"""Rows leave and enter, prompts differ, rings wrap, looks are rare: a row is written alike, whatever happens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.laws.models import a_model

from leftward.auditing.writing_laws import Anew
from leftward.decoding import engine as engines
from leftward.decoding.engine import Engine, Finished, Token
from leftward.decoding.rows import Request
from leftward.decoding.scorer import Scorer
from leftward.errors import SettingsError
from leftward.model.exact import exact
from leftward.packed import pack, unpack
from leftward.settings import Beam, Greedy, Sample, Stack

STRATEGIES = [Greedy(), Beam(size=3, n_best=2), Sample(seed=5)]
END = 4

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
each_kind = pytest.mark.parametrize("kind", ["translation", "language"])


def a_writer(kind="language", seed=5, **changes):
    """A model that does not say the same word for ever."""
    if kind == "language":
        changes = {"encoder": None, **changes}
    model = a_model(norm_place="before", tie="none", **changes)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.3)
        model.output.weight.copy_(model.embedding.words.weight.roll(7, 0))
    return model


def some_requests(model, count, *, longest=9, limits=(1, 13), seed=0):
    """Rows with prompts, limits and sources of uneven lengths."""
    random = np.random.default_rng(seed)

    def some(most):
        return random.integers(0, model.settings.vocabulary, int(random.integers(1, most + 1))).tolist()

    return [
        Request(
            row=100 - row,
            prompt=some(longest),
            limit=int(random.integers(*limits)),
            source=some(8) if model.settings.has_encoder else None,
        )
        for row in range(count)
    ]


def write(scorer, strategy, requests, *, groups=64, end=END):
    return {request.row: outputs for request, outputs in Engine(scorer, strategy, end, groups).write(requests)}


def alike(one, other):
    """Whether two writings have the same texts, and totals that differ by rounding only."""
    assert one.keys() == other.keys()
    for row, outputs in one.items():
        assert [output.tokens for output in outputs] == [output.tokens for output in other[row]]
        for output, another in zip(outputs, other[row], strict=True):
            assert output[1:] == pytest.approx(another[1:], rel=1e-10)
    return True


@each_kind
@each_strategy
def test_rows_leave_and_enter(strategy, kind):
    model = a_writer(kind)
    requests = some_requests(model, 30)
    anew = write(Anew([model]), strategy, requests)
    assert len({len(outputs[0].tokens) for outputs in anew.values()}) > 5
    for groups in (1, 4, 17, 30, 100):
        assert alike(anew, write(Scorer([model]), strategy, requests, groups=groups))


@each_strategy
def test_rows_come_once_each_and_as_they_are_done(strategy):
    model = a_writer()
    requests = [Request(row, [row], limit) for row, limit in enumerate([9, 2, 5, 1, 7])]
    finished = list(Engine(Scorer([model]), strategy, end=None).write(iter(requests)))
    assert [each.request.limit for each in finished] == [1, 2, 5, 7, 9]
    assert {id(each.request) for each in finished} == {id(request) for request in requests}


def test_nothing_to_write():
    engine = Engine(Scorer([a_writer()]), Greedy(), END)
    assert list(engine.write([])) == []
    assert list(engine.stream(iter(()))) == []


@each_kind
@each_strategy
def test_rare_looks_change_nothing(strategy, kind, monkeypatch):
    model = a_writer(kind)
    requests = some_requests(model, 21)
    often = write(Scorer([model]), strategy, requests)
    for between in (2, 8):
        monkeypatch.setitem(engines.STEPS_BETWEEN_LOOKS, "cpu", between)
        for groups in (3, 8, 21):
            assert alike(often, write(Scorer([model]), strategy, requests, groups=groups))


@pytest.mark.parametrize("between", [1, 8])
@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=5)], ids=["Greedy", "Sample"])
def test_every_token_is_shown_once_and_in_order(strategy, between, monkeypatch):
    monkeypatch.setitem(engines.STEPS_BETWEEN_LOOKS, "cpu", between)
    model = a_writer()
    requests = some_requests(model, 20)
    shown = {request.row: [] for request in requests}
    done = []
    for event in Engine(Scorer([model]), strategy, END, groups=6).stream(requests):
        assert event.request.row not in done
        if isinstance(event, Token):
            shown[event.request.row].append(event.token)
        else:
            assert event.outputs[0].tokens == shown[event.request.row]
            done.append(event.request.row)
    assert sorted(done) == sorted(shown)


def test_a_token_is_shown_as_soon_as_it_is_written(monkeypatch):
    steps = []
    sound = Scorer.advance
    monkeypatch.setattr(Scorer, "advance", lambda scorer, batch: steps.append(1) or sound(scorer, batch))
    events = Engine(Scorer([a_writer()]), Greedy(), end=None).stream([Request(0, [1, 2], 4), Request(1, [3], 4)])
    for written in range(4):
        for row in range(2):
            assert next(events).request.row == row or written == 3
            assert len(steps) == written + 1


def test_a_beam_shows_nothing_before_it_is_done():
    model = a_writer()
    events = list(Engine(Scorer([model]), Beam(size=3), END).stream(some_requests(model, 6)))
    assert len(events) == 6
    assert all(isinstance(event, Finished) for event in events)


@each_strategy
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("between", [1, 8])
def test_a_row_may_fill_the_context_and_no_more(strategy, groups, between, monkeypatch):
    monkeypatch.setitem(engines.STEPS_BETWEEN_LOOKS, "cpu", between)
    model = a_writer(context=12)
    lengths = [1, 2, 5, 11, 12]
    requests = [Request(row, list(range(length)), limit=10**9) for row, length in enumerate(lengths)]
    written = write(Scorer([model]), strategy, requests, groups=groups, end=None)
    # The last token is written and never read.
    assert [len(written[row][0].tokens) for row in range(5)] == [12 - length + 1 for length in lengths]
    assert alike(write(Anew([model]), strategy, requests, end=None), written)


@each_strategy
def test_a_prompt_longer_than_the_context_is_refused(strategy):
    model = a_writer(context=12)
    with pytest.raises(SettingsError, match="13 tokens.*context of 12"):
        write(Scorer([model]), strategy, [Request(0, [1], 3), Request(1, [1] * 13, 3)])


@pytest.mark.parametrize("window", [3, 40, (0, 5)], ids=str)
@each_strategy
def test_rings_wrap_and_are_used_again(window, strategy):
    stack = Stack(layers=2, heads=2, feed_forward=24, window=window)
    model = a_writer(decoder=stack, context=200)
    requests = some_requests(model, 5, longest=6, limits=(60, 140), seed=2)
    anew = write(Anew([model]), strategy, requests, end=None)
    assert max(len(outputs[0].tokens) for outputs in anew.values()) > 100
    assert alike(anew, write(Scorer([model]), strategy, requests, groups=2, end=None))


@pytest.mark.parametrize("window", [0, 3, 40, (0, 5)], ids=str)
def test_a_long_prompt_is_read_beside_a_window(window):
    stack = Stack(layers=2, heads=2, feed_forward=24, window=window)
    model = a_writer(decoder=stack, context=400)
    lengths_and_limits = [(100, 5), (1, 20), (30, 90), (3, 8), (70, 40), (250, 3)]
    requests = [
        Request(row, list(map(int, np.random.default_rng(row).integers(0, 30, length))), limit)
        for row, (length, limit) in enumerate(lengths_and_limits)
    ]
    anew = write(Anew([model]), Greedy(), requests)
    for some in (requests, requests[:5], *([request] for request in requests)):
        written = write(Scorer([model]), Greedy(), some, groups=2)
        assert alike({request.row: anew[request.row] for request in some}, written)


@pytest.mark.parametrize("window", [0, 3], ids=["no window", "a window"])
@each_strategy
def test_exact_bits_do_not_depend_on_how_long_others_are(window, strategy):
    stack = Stack(layers=2, heads=4, feed_forward=48, window=window)
    model = a_writer(decoder=stack, context=200, width=32).float()
    requests = some_requests(model, 5, longest=4, limits=(50, 80), seed=3)
    requests.append(Request(0, [7] * 100, 5))
    with exact():
        together = write(Scorer([model]), strategy, requests, end=None)
        for request in requests:
            assert write(Scorer([model]), strategy, [request], end=None) == {request.row: together[request.row]}


@each_kind
def test_empty_groups_are_dropped_at_the_tail(kind, monkeypatch):
    widths = []
    sound = Scorer.advance
    monkeypatch.setattr(Scorer, "advance", lambda scorer, batch: widths.append(len(batch)) or sound(scorer, batch))
    model = a_writer(kind)
    requests = [replace(request, limit=3 + 2 * place) for place, request in enumerate(some_requests(model, 8))]
    beam = Beam(size=3, n_best=3)
    written = write(Scorer([model]), beam, requests, end=None)
    assert sorted(set(widths), reverse=True) == [24, 12, 6, 3]
    assert widths == sorted(widths, reverse=True)
    assert alike(write(Anew([model]), beam, requests, end=None), written)


@pytest.mark.parametrize("groups", [1, 3, 20])
@each_strategy
def test_a_source_is_read_once(strategy, groups, monkeypatch):
    model = a_writer("translation")
    requests = some_requests(model, 20)
    read = []
    sound = model.encode
    monkeypatch.setattr(model, "encode", lambda source: read.extend(unpack(source.ids, source)) or sound(source))
    write(Scorer([model]), strategy, requests, groups=groups)
    assert sorted(part.tolist() for part in read) == sorted(request.source for request in requests)


@torch.no_grad()
def average(models, request, tokens):
    """What several models say of each token of a text: the logarithm of the mean of their shares, (tokens, words)."""
    shares = []
    for model in models:
        source = None if request.source is None else pack([request.source])
        batch = pack([[*request.prompt, *tokens[:-1]]])
        shares.append(model.scores(model(batch, source)).softmax(dim=-1)[-len(tokens) :])
    return (sum(shares) / len(shares)).log()


@each_kind
@each_strategy
def test_several_models_average_their_shares(strategy, kind):
    models = [a_writer(kind, seed) for seed in (5, 6, 7)]
    requests = some_requests(models[0], 6)
    written = write(Scorer(models), strategy, requests, groups=4)
    assert not all(
        [output.tokens for output in written[request.row]] == [output.tokens for output in alone[request.row]]
        for alone in [write(Scorer(models[:1]), strategy, requests)]
        for request in requests
    )
    for request in requests:
        for output in written[request.row]:
            said = average(models, request, output.tokens)
            total = said.gather(1, torch.tensor(output.tokens)[:, None]).sum().item()
            assert output.total == pytest.approx(total, rel=1e-10)
            if isinstance(strategy, Greedy):
                assert said.argmax(dim=-1).tolist() == output.tokens


def test_models_that_do_not_fit_together_are_refused():
    with pytest.raises(SettingsError, match="different vocabularies"):
        Scorer([a_writer(), a_writer(vocabulary=29)])
    with pytest.raises(SettingsError, match="different kinds"):
        Scorer([a_writer(), a_writer("translation")])


def test_the_shortest_context_of_several_models_holds():
    scorer = Scorer([a_writer(context=12), a_writer(context=9)])
    assert [
        len(outputs[0].tokens) for outputs in write(scorer, Greedy(), [Request(0, [1], 99)], end=None).values()
    ] == [9]


@each_strategy
def test_an_engine_can_be_used_again_and_twice_at_once(strategy):
    model = a_writer("translation")
    requests = some_requests(model, 12)
    engine = Engine(Scorer([model]), strategy, END, groups=4)
    first = {each.request.row: each.outputs for each in engine.write(requests)}
    one, other = engine.write(requests), engine.write(requests[::-1])
    together = [(next(one), next(other)) for _ in requests]
    for each in zip(*together, strict=True):
        assert alike(first, {finished.request.row: finished.outputs for finished in each})


@each_kind
def test_samples_of_one_row_differ_and_do_not_disturb_each_other(kind):
    model = a_writer(kind)
    requests = some_requests(model, 4, limits=(8, 13))
    alone = write(Scorer([model]), Sample(seed=3), requests, end=None)
    several = [replace(request, sample=sample) for request in requests for sample in (2, 0, 1)]
    texts = {request.row: {} for request in requests}
    for request, outputs in Engine(Scorer([model]), Sample(seed=3), None, groups=5).write(several):
        texts[request.row][request.sample] = outputs[0].tokens
    for row, samples in texts.items():
        assert samples[0] == alone[row][0].tokens
        assert len(set(map(tuple, samples.values()))) == 3


def test_rows_and_seeds_draw_differently():
    model = a_writer()
    requests = [Request(row, [1], 12) for row in range(8)]
    texts = [
        tuple(outputs[0].tokens)
        for seed in (1, 2, 3)
        for outputs in write(Scorer([model]), Sample(seed=seed), requests, end=None).values()
    ]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=5)], ids=["Greedy", "Sample"])
def test_totals_may_be_left_out(strategy):
    model = a_writer()
    requests = some_requests(model, 5)
    counted = write(Scorer([model]), strategy, requests)
    for request, outputs in Engine(Scorer([model]), strategy, END, totals=False).write(requests):
        assert outputs[0].tokens == counted[request.row][0].tokens
        assert np.isnan(outputs[0].total)


def test_no_gradient_is_recorded_and_the_mode_is_left_alone():
    model = a_writer()
    events = Engine(Scorer([model]), Greedy(), END).stream([Request(0, [1], 3)])
    next(events)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
