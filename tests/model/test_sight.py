"""The rule of sight against a loop in plain words, and its renderings against each other."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from leftward.model import sight
from leftward.model.attention import CrossAttention, SelfAttention, forced_path
from leftward.model.rectangles import Meeting
from leftward.packed import Places, pack
from leftward.settings import Model, Stack


def loop(rule, query, key):
    """Who sees whom, one pair at a time."""
    window = getattr(rule, "window", None) or 10**9
    seen = []
    for row, at, reads in query:
        line = []
        for key_row, key_at, _ in key:
            if isinstance(rule, sight.SameSource):
                line.append(key_row == reads)
            elif isinstance(rule, sight.WholeRow):
                line.append(key_row == row and key_at in range(at - window + 1, at + window))
            else:
                line.append(key_row == row and key_at in range(at - window + 1, at + 1))
        seen.append(line)
    return seen


windows = some.none() | some.integers(1, 6)
rules = some.builds(sight.Leftward, windows) | some.builds(sight.WholeRow, windows) | some.just(sight.SameSource())
place = some.tuples(some.integers(0, 2), some.integers(0, 9), some.integers(0, 2))
tokens = some.lists(place, min_size=1, max_size=9)


def places(tokens):
    return Places(*(torch.tensor(part) for part in zip(*tokens, strict=True)))


@settings(max_examples=300)
@given(rules, tokens, tokens)
def test_a_rule_is_what_its_sentence_says(rule, query, key):
    said = loop(rule, query, key)
    assert rule(*sight.outer(places(query), places(key))).tolist() == said
    matrix = sight.matrix(rule, places(query), places(key), torch.float64)
    assert matrix.tolist() == [[0.0 if sees else -torch.inf for sees in line] for line in said]
    assert matrix.dtype == torch.float64


def test_rows_of_a_batch_keep_to_themselves():
    at = torch.arange(4)
    query = Places(*(part.expand(3, 4) for part in (torch.arange(3)[:, None], at, at)))
    matrix = sight.matrix(sight.Leftward(), query, query)
    assert matrix.shape == (3, 4, 4)
    assert all(torch.equal(matrix[row], matrix[0]) for row in range(3))
    beside = Places(query.row.roll(1, 0), query.at, query.reads)
    assert sight.matrix(sight.Leftward(), query, beside).max() == -torch.inf


@given(place, some.sampled_from([sight.Leftward(), sight.Leftward(3)]))
def test_nobody_sees_an_unused_cell(query, rule):
    unused = (query[0], sight.UNREACHABLE, query[2])
    assert not rule(*sight.outer(places([query]), places([unused]))).any()
    # Far to the right of any row there will be, and a difference still fits 32 bits.
    assert 10**9 < sight.UNREACHABLE < 2**31 - 10**9


@given(place, rules)
def test_nobody_sees_a_cell_that_only_fills_up(query, rule):
    assert not rule(*sight.outer(places([query]), places([(sight.NOBODY, query[1], query[2])]))).any()


def test_the_kernels_triangle_is_the_plain_decoder_rule_on_the_same_places():
    assert sight.is_kernel_triangle(sight.Leftward(), same_places=True)
    assert not sight.is_kernel_triangle(sight.Leftward(), same_places=False)
    others = (sight.Leftward(1), sight.Leftward(10**6), sight.WholeRow(), sight.WholeRow(2), sight.SameSource())
    assert not any(sight.is_kernel_triangle(rule, same_places=True) for rule in others)


def flex(rule, queries, keys, values, query, key, scale):
    """One packed stream (N, H, D) through FlexAttention's eager forward, back as (N, H * D)."""
    may_look = sight.mask_function(rule, query.places, key.places)
    mask = create_block_mask(may_look, None, None, len(query), len(key), device="cpu")
    streams = (part.transpose(0, 1)[None] for part in (queries, keys, values))
    grouped = queries.shape[1] != keys.shape[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        mixed = flex_attention(*streams, block_mask=mask, scale=scale, enable_gqa=grouped)
    return mixed[0].transpose(0, 1).flatten(1)


GROUPED = Stack(heads=4, key_heads=2)
SETTINGS = Model(vocabulary=9, width=16, decoder=GROUPED, encoder=GROUPED)


@torch.no_grad()
@pytest.mark.parametrize(
    "rule",
    [sight.Leftward(), sight.Leftward(1), sight.Leftward(3), sight.WholeRow(), sight.WholeRow(2)],
    ids=str,
)
@pytest.mark.parametrize("starts", [None, [0, 5, 2, 0]])
def test_the_mask_function_shows_what_the_plain_path_shows(rule, starts):
    torch.manual_seed(0)
    attention = SelfAttention(SETTINGS, GROUPED, rule).double()
    batch = pack([[1] * length for length in (7, 1, 12, 5)], names=[3, 0, 2, 1], starts=starts)
    states = torch.randn(len(batch), 16, dtype=torch.float64)
    table = attention.input(states).view(len(batch), 8, 4)
    parts = table.split([4, 2, 2], dim=1)
    by_flex = attention.output(flex(rule, *parts, batch, batch, attention.scale))
    with forced_path("plain"):
        by_door = attention(states, Meeting(batch, batch))
    torch.testing.assert_close(by_flex, by_door, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_mask_function_shows_the_source_that_the_plain_path_shows():
    torch.manual_seed(0)
    attention = CrossAttention(SETTINGS, GROUPED).double()
    source = pack([[1] * length for length in (4, 9, 1)], names=[5, 1, 3])
    target = pack([[1] * length for length in (7, 2, 1, 5)], reads=[1, 3, 5, 1])
    states, memory = (torch.randn(len(side), 16, dtype=torch.float64) for side in (target, source))
    keys, values = attention.project(memory).unbind(1)
    queries = attention.queries(states).view(-1, 4, 4)
    by_flex = attention.output(flex(sight.SameSource(), queries, keys, values, target, source, attention.scale))
    with forced_path("plain"):
        by_door = attention(states, Meeting(target, source), memory)
    torch.testing.assert_close(by_flex, by_door, rtol=0, atol=1e-12)
