"""Beam search finds what there is to find: against every possible text, and against the same search in plain lists."""

from itertools import product

import numpy as np
import pytest
import torch
from tests.laws.models import a_model

from leftward.decoding.engine import Engine
from leftward.decoding.rows import Request
from leftward.decoding.scorer import Scorer
from leftward.packed import pack, unpack
from leftward.settings import Beam

WORDS, END = 6, 2


def a_speaker(seed, **changes):
    """A small model with opinions of its own, and a taste of its own for the end."""
    model = a_model(vocabulary=WORDS, tie="none", norm_place="before", output_bias=True, **changes)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.3)
        model.output.bias[END] = float(torch.randn(())) - 0.5
    return model


def a_request(model, seed, *, limit=5):
    random = np.random.default_rng(seed)
    prompt = random.integers(0, WORDS, int(random.integers(1, 4))).tolist()
    source = random.integers(0, WORDS, 4).tolist() if model.settings.has_encoder else None
    return Request(row=0, prompt=prompt, limit=limit, source=source)


@torch.no_grad()
def say(model, request, texts):
    """Log-probabilities of every word after the prompt, and after each token of each text: (len(text) + 1, words)."""
    batch = pack([[*request.prompt, *text] for text in texts], reads=[0] * len(texts))
    source = None if request.source is None else pack([request.source])
    said = unpack(model.scores(model(batch, source)).log_softmax(dim=-1), batch)
    return [part[len(request.prompt) - 1 :] for part in said]


def every_output(model, request, penalty):
    """All texts that end within the limit or reach it, best first: (score, total, tokens)."""
    others = [word for word in range(WORDS) if word != END]
    stems = [list(stem) for stem in product(others, repeat=request.limit - 1)]
    outputs = {}
    for stem, said in zip(stems, say(model, request, stems), strict=True):
        totals = np.cumsum([0.0, *(said[at, word].item() for at, word in enumerate(stem))])
        texts = [(*stem[:length], END) for length in range(request.limit)]
        texts += [(*stem, word) for word in others]
        for text in texts:
            total = totals[len(text) - 1] + said[len(text) - 1, text[-1]].item()
            outputs[text] = (total / len(text) ** penalty, total, list(text))
    return sorted(outputs.values(), reverse=True)


def search(model, request, beam):
    """The same search in plain lists, and without a cache: (score, total, tokens)."""
    stems, pool, ended = [(0.0, [])], [], 0
    for length in range(1, request.limit + 1):
        said = say(model, request, [text for _, text in stems])
        longer = [
            (total + line[-1, word].item(), [*text, word])
            for (total, text), line in zip(stems, said, strict=True)
            for word in range(WORDS)
        ]
        longer = sorted(longer, reverse=True)[: 2 * beam.size]
        ends = [(total, text) for total, text in longer[: beam.size] if text[-1] == END]
        stems = [(total, text) for total, text in longer if text[-1] != END][: beam.size]
        ended += len(ends)
        if length == request.limit and ended < beam.size:
            ends += stems
        pool += [(total / length**beam.length_penalty, total, text) for total, text in ends]
        pool = sorted(pool, reverse=True)[: beam.size]
        if ended >= beam.size:
            break
    return pool[: beam.n_best]


def write(model, request, beam):
    [(_, outputs)] = Engine(Scorer([model]), beam, END).write([request])
    return [(output.score, output.total, output.tokens) for output in outputs]


def check(found, expected):
    assert [tokens for _, _, tokens in found] == [tokens for _, _, tokens in expected]
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == pytest.approx(other[:2], rel=1e-10)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["translation", "language"])
def test_a_beam_of_full_width_finds_the_best_of_all_texts(kind, seed, penalty):
    model = a_speaker(seed) if kind == "translation" else a_speaker(seed, encoder=None)
    request = a_request(model, seed)
    every = every_output(model, request, penalty)
    assert len(every) == sum(5**length for length in range(6))
    # Wide enough for all continuations of the 125 texts of three words, so that nothing is lost before the last step.
    found = write(model, request, Beam(size=750, length_penalty=penalty, n_best=100))
    check(found, every[:100])


def test_a_narrow_beam_misses_what_a_wide_one_finds():
    missed = 0
    for seed in range(12):
        model = a_speaker(seed)
        request = a_request(model, seed)
        best, *_ = every_output(model, request, 1.0)
        [narrow] = write(model, request, Beam(size=1, length_penalty=1.0))
        assert narrow[0] <= best[0] + 1e-12
        missed += narrow[2] != best[2]
    assert 0 < missed < 12


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["translation", "language"])
def test_it_is_the_search_that_lists_make(kind, penalty, size):
    for seed in range(6):
        model = a_speaker(seed) if kind == "translation" else a_speaker(seed, encoder=None)
        request = a_request(model, seed, limit=1 + 2 * seed)
        beam = Beam(size=size, length_penalty=penalty, n_best=size)
        check(write(model, request, beam), search(model, request, beam))


def test_the_score_may_prefer_long_texts():
    lengths = []
    for penalty in (0.0, 1.0, 3.0):
        lengths.append(0)
        for seed in range(5):
            model = a_speaker(seed)
            lengths[-1] += len(write(model, a_request(model, seed), Beam(size=50, length_penalty=penalty))[0][2])
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_without_an_end_token_all_texts_reach_the_limit():
    model = a_speaker(4)
    request = a_request(model, 4)
    [(_, outputs)] = Engine(Scorer([model]), Beam(size=3, n_best=3), end=None).write([request])
    assert [len(output.tokens) for output in outputs] == [request.limit] * 3


def test_a_beam_offers_no_more_texts_than_can_be_written():
    model = a_speaker(3)
    outputs = write(model, a_request(model, 3, limit=1), Beam(size=9, n_best=9))
    assert sorted(tokens for _, _, tokens in outputs) == [[word] for word in range(WORDS)]


def test_a_vocabulary_of_two_words_fills_a_wide_beam():
    model = a_model(vocabulary=2, encoder=None)
    [(_, outputs)] = Engine(Scorer([model]), Beam(size=9, n_best=9), end=1).write([Request(0, [0], limit=4)])
    assert {tuple(output.tokens) for output in outputs} == {(1,), (0, 1), (0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 0)}
