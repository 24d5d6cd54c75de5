"""The door: which path it takes, that both paths agree, and what its tap tells."""

from contextlib import nullcontext

import pytest
import torch
from tests.laws.models import CHOICES, a_model, build, describe, settings_of
from torch import nn

from leftward.auditing.specimens import draw_sample
from leftward.model import sight
from leftward.model.attention import (
    FUSED_FROM_KEYS,
    CrossAttention,
    SelfAttention,
    biases_of,
    choose_path,
    forced_path,
    fused,
    plain,
)
from leftward.model.exact import exact
from leftward.model.precision import computing_in
from leftward.model.rectangles import Meeting
from leftward.model.tap import Attended, Tap, listen
from leftward.packed import Places, pack
from leftward.settings import Stack

LONG = FUSED_FROM_KEYS
SHORT = LONG - 1


def chosen(queries, keys, dtype=torch.float32, device="cpu"):
    query = torch.empty(1, 1, 1, queries, 8, dtype=dtype, device=device)
    return choose_path(query, torch.empty(1, 1, keys, 8, dtype=dtype, device=device))


@pytest.mark.parametrize(
    ("queries", "keys", "dtype", "precision", "path"),
    [
        (LONG, LONG, torch.float32, "float32", "fused"),
        (LONG, 4 * LONG, torch.float32, "float32", "fused"),
        (SHORT, LONG, torch.float32, "float32", "plain"),
        (LONG, SHORT, torch.float32, "float32", "plain"),
        (1, 4 * LONG, torch.float32, "float32", "plain"),
        (17, 17, torch.float32, "float32", "plain"),
        (LONG, LONG, torch.float32, "medium", "plain"),
        (LONG, LONG, torch.bfloat16, "float32", "plain"),
        (LONG, LONG, torch.bfloat16, "bfloat16", "plain"),
        (LONG, LONG, torch.float64, "float32", "plain"),
    ],
)
def test_the_path_on_a_cpu(queries, keys, dtype, precision, path):
    with computing_in(precision):
        assert chosen(queries, keys, dtype) == path
        for wanted in ("plain", "fused"):
            with forced_path(wanted):
                assert chosen(queries, keys, dtype) == wanted
        assert chosen(queries, keys, dtype) == path


def test_exact_arithmetic_takes_the_plain_path():
    with exact():
        assert chosen(LONG, LONG) == "plain"
        assert chosen(LONG, LONG, device="meta") == "plain"
    assert chosen(LONG, LONG) == "fused"


def test_elsewhere_than_on_a_cpu_the_kernel_runs():
    assert chosen(3, 3, torch.bfloat16, device="meta") == "fused"


def test_a_forced_path_ends_with_its_block_even_when_that_fails():
    with pytest.raises(KeyError), forced_path("fused"):
        raise KeyError
    assert chosen(3, 3) == "plain"
    with forced_path("fused"):
        with forced_path("plain"):
            assert chosen(3, 3) == "plain"
        assert chosen(3, 3) == "fused"


def random_parts(key_heads, group, queries=5, keys=7, size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, key_heads, group, queries, size), (3, key_heads, keys, size), (3, key_heads, keys, size)]
    shapes.append((3, key_heads, group, queries, keys))
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def left_of_a_late_query(queries=5, keys=7):
    """The last query stands at the last key, in three rows."""
    row = torch.arange(3)[:, None]
    query = Places(row.expand(3, queries), torch.arange(keys - queries, keys).expand(3, queries), row)
    key = Places(row.expand(3, keys), torch.arange(keys).expand(3, keys), row)
    return sight.matrix(sight.Leftward(), query, key, torch.float64)[:, None, None]


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("bias", ["a bias", "one bias for all rows", "no bias"])
def test_both_paths_are_the_textbook(key_heads, group, bias):
    queries, keys, values, added = random_parts(key_heads, group)
    added = {"a bias": added, "one bias for all rows": added[:1], "no bias": None}[bias]
    matrix = left_of_a_late_query()
    one, weights = plain(queries, keys, values, matrix, added, 0.3)
    other = fused(queries, keys, values, matrix, added, 0.3)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    # Query by query, in plain words.
    for row in range(3):
        for head in range(key_heads):
            for member in range(group):
                for at in range(5):
                    seen = at + 3
                    scores = 0.3 * keys[row, head, :seen] @ queries[row, head, member, at]
                    if added is not None:
                        scores = scores + added[row % len(added), head, member, at, :seen]
                    shares = scores.exp() / scores.exp().sum()
                    place = (row, head, member, at)
                    torch.testing.assert_close(weights[place][:seen], shares)
                    assert not weights[place][seen:].any()
                    torch.testing.assert_close(one[place], shares @ values[row, head, :seen])


@pytest.mark.parametrize("group", [1, 3])
def test_without_a_matrix_the_kernel_has_its_own_triangle(group):
    queries, keys, values, _ = random_parts(2, group, queries=6, keys=6)
    at = torch.arange(6).expand(3, 6)
    places = Places(torch.zeros_like(at), at, at)
    matrix = sight.matrix(sight.Leftward(), places, places, torch.float64)[:, None, None]
    expected = plain(queries, keys, values, matrix, None, 0.5)[0]
    torch.testing.assert_close(fused(queries, keys, values, None, None, 0.5), expected, rtol=0, atol=1e-12)


def test_gradients_of_both_paths_agree():
    parts = random_parts(2, 3)
    found = []
    for path in (lambda *given: plain(*given)[0], fused):
        leaves = [part.clone().requires_grad_() for part in parts]
        mixed = path(*leaves[:3], left_of_a_late_query(), leaves[3], 0.3)
        weights = torch.arange(mixed.numel()).view(mixed.shape).double().cos()
        found.append(torch.autograd.grad((mixed * weights).sum(), leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def cells_of_tokens(told):
    """(b, Q) where a token stands: a cell that only fills up a row repeats the place before it."""
    at = told.places[0].at
    return torch.cat([torch.ones_like(at[:, :1], dtype=torch.bool), at[:, 1:] != at[:, :-1]], dim=1)


def scores_of(told):
    """Scores by another road than either path: one sum over all letters."""
    scores = told.scale * torch.einsum("bhgqd,bhkd->bhgqk", told.queries, told.keys) + told.matrix
    return scores if told.bias is None else scores + told.bias


def told_by(model, target, source):
    heard = []
    with listen(model, lambda name, value: heard.append((name, value))), torch.no_grad():
        model(target, source)
    return heard


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("choice", CHOICES[:12], ids=describe)
def test_a_tap_tells_what_was_computed(choice, path):
    model = build(settings_of(choice))
    sample = draw_sample(model.settings, seed=1)
    with forced_path(path):
        heard = told_by(model, sample.target(), sample.source())
    attended = {name: value for name, value in heard if isinstance(value, Attended)}
    sites = {f"{name}.tap" for name, part in model.named_modules() if isinstance(part, SelfAttention | CrossAttention)}
    assert set(attended) == sites
    for told in attended.values():
        weights = scores_of(told).softmax(dim=-1)
        assert told.path == path
        expected = torch.einsum("bhgqk,bhkd->bhgqd", weights, told.values)
        real = cells_of_tokens(told)[:, None, None, :, None]
        torch.testing.assert_close(expected * real, told.output * real)
        if path == "plain":
            torch.testing.assert_close(told.weights, weights, rtol=0, atol=1e-12)
        else:
            assert told.weights is None
        query, key = told.places
        assert told.matrix.shape[-2:] == (query.at.shape[1], key.at.shape[1])


def test_every_tap_is_heard_and_told_the_states():
    model = a_model()
    heard = told_by(model, pack([[1, 2], [3]]), pack([[4], [5, 6]]))
    assert {name for name, _ in heard} == {name for name, part in model.named_modules() if isinstance(part, Tap)}
    for name, value in heard:
        if not isinstance(value, Attended):
            assert value.shape == (3, 16), name


def test_listening_changes_nothing_and_ends_with_its_block():
    model = a_model()
    target, source = pack([[1, 2], [3]]), pack([[4], [5, 6]])
    before = model(target, source)
    taps = [part for part in model.modules() if isinstance(part, Tap)]
    with listen(model, lambda name, value: None):
        assert torch.equal(model(target, source), before)
        with listen(model.encoder, lambda name, value: None):
            assert all(len(tap.listeners) == 2 for tap in model.encoder.modules() if isinstance(tap, Tap))
        assert all(len(tap.listeners) == 1 for tap in taps)
    assert not any(tap.listeners for tap in taps)
    with pytest.raises(KeyError), listen(model, lambda name, value: None):
        raise KeyError
    assert not any(tap.listeners for tap in taps)


def test_where_nobody_listens_nothing_is_told(monkeypatch):
    def tell(tap, value):
        raise RuntimeError

    monkeypatch.setattr(Tap, "tell", tell)
    model = a_model()
    model(pack([[1, 2], [3]]), pack([[4], [5, 6]]))
    with pytest.raises(RuntimeError), listen(model, lambda name, value: None):
        model(pack([[1]]), pack([[1]]))


def test_biases_have_one_score_for_each_head_and_pair():
    model = a_model(positions="alibi", encoder=None)
    batch = pack([[1] * length for length in (9, 2, 30)])
    meeting = Meeting(batch, batch)
    biases = biases_of(model.decoder.bias, meeting, torch.float64)
    assert [tuple(bias.shape) for bias in biases] == [(b, 2, q, k) for b, q, k in meeting.shapes]
    assert biases_of(None, meeting, torch.float64) is None


@pytest.mark.parametrize("arithmetic", [nullcontext, exact])
def test_one_product_makes_queries_keys_and_values_in_this_order(arithmetic):
    model = a_model(encoder=None, decoder=Stack(layers=1, heads=4, key_heads=2, feed_forward=8))
    attention = model.decoder.layers[0].attention
    heard = []
    with arithmetic(), torch.no_grad():
        states = torch.randn(3, 16, dtype=torch.float64)
        with listen(attention, lambda name, value: heard.append(value)):
            batch = pack([[1, 1, 1]])
            attention(states, Meeting(batch, batch))
    table = nn.functional.linear(states, attention.input.weight, attention.input.bias).view(3, 8, 4)
    told = heard[0]
    torch.testing.assert_close(told.queries[0, :, :, :3].flatten(0, 1), table[:, :4].transpose(0, 1))
    torch.testing.assert_close(told.keys[0, :, :3], table[:, 4:6].transpose(0, 1))
    torch.testing.assert_close(told.values[0, :, :3], table[:, 6:].transpose(0, 1))
