"""Greedy writing with a cache is the argmax of the whole row read anew for every token."""

import numpy as np
import pytest
import torch
from tests.laws.models import CHOICES, a_model, build, describe, settings_of

from leftward.auditing.specimens import draw_sample
from leftward.decoding.greedy import advance, write
from leftward.model.precision import computing_in
from leftward.packed import pack, unpack
from leftward.settings import Stack


def lively(**changes):
    """A model that does not repeat one word for ever: what is said next is mostly another word."""
    model = a_model(norm_place="before", tie="none", context=200, **changes)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.3)
        model.output.weight.copy_(model.embedding.words.weight.roll(7, 0))
    return model


def variety(row):
    """How many words of a row are said."""
    return len(set(row.tolist()))


@torch.no_grad()
def anew(model, start, length, source=None, slots=1):
    """The same rows without a cache: every prefix is read from its beginning."""
    rows = [[start] for _ in range(slots)]
    for _ in range(length):
        batch = pack(rows)
        scores = unpack(model.scores(model(batch, source)), batch)
        for row, own in zip(rows, scores, strict=True):
            row.append(own[-1].argmax().item())
    return [row[1:] for row in rows]


@pytest.mark.parametrize("choice", CHOICES, ids=describe)
def test_every_mix_writes_what_it_would_say_reading_anew(choice):
    model = build(settings_of(choice))
    source = draw_sample(model.settings, seed=3).source()
    slots = 1 if source is None else 4
    assert write(model, 7, 15, source=source).tolist() == anew(model, 7, 15, source, slots)


@pytest.mark.parametrize("window", [3, 40, (0, 5)], ids=str)
def test_it_writes_on_when_a_ring_has_wrapped(window):
    stack = Stack(layers=2, heads=2, feed_forward=24, window=window)
    model = lively(encoder=None, decoder=stack)
    written = write(model, 7, 150)
    assert written.tolist() == anew(model, 7, 150)
    assert variety(written[0]) > 8


def test_every_slot_writes_the_same_without_a_source():
    model = lively(encoder=None)
    written = write(model, 3, 12, slots=5)
    assert written.shape == (5, 12)
    assert written.dtype == torch.long
    assert (written == written[0]).all()


def test_one_row_writes_what_it_writes_among_others():
    model = lively()
    random = np.random.default_rng(0)
    rows = [random.integers(0, 30, length) for length in (9, 1, 4)]
    together = write(model, 3, 12, source=pack(rows))
    assert together.tolist() == [write(model, 3, 12, source=pack([row]))[0].tolist() for row in rows]
    assert len({tuple(row) for row in together.tolist()}) == 3
    assert max(map(variety, together)) > 4


@torch.no_grad()
def test_one_step():
    model = lively(encoder=None)
    cache = model.allocate(slots=2, capacity=4)
    model(pack([[1, 2, 3], [4]]), cache=cache)
    said = advance(model, torch.tensor([5, 6]), torch.tensor([3, 1]), cache, furthest=3)
    expected = [model.scores(model(pack([row])))[-1].argmax().item() for row in ([1, 2, 3, 5], [4, 6])]
    assert said.tolist() == expected


@pytest.mark.parametrize("precision", ["float32", "medium", "bfloat16"])
def test_it_writes_in_every_precision(precision):
    model = lively().float()
    source = pack([[1, 2, 3], [4, 5]])
    with computing_in(precision):
        written = write(model, 7, 10, source=source)
    if precision == "bfloat16":
        assert written.shape == (2, 10)  # near words may change places
    else:
        assert written.tolist() == anew(model, 7, 10, source, 2)


def test_a_model_cast_to_bfloat16_writes():
    model = lively().bfloat16()
    assert write(model, 7, 10, source=pack([[1, 2, 3], [4, 5]])).shape == (2, 10)
