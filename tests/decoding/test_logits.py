"""What filters keep, on any scores of one to three dimensions: with ties, and with words that are ruled out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from leftward.decoding.logits import keep_top_k, keep_top_p, temper

# Few values give many ties; -inf is a word that something before has left out.
A_SCORE = st.sampled_from([-math.inf, -3.0, -1.5, 0.0, 0.5, 2.0]) | st.floats(-30, 30, width=32)


@st.composite
def some_scores(draw):
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=3, max_side=7))
    scores = draw(arrays.arrays(np.float32, shape, elements=A_SCORE))
    scores[..., 0] = np.where(np.isinf(scores).all(axis=-1), 0.0, scores[..., 0])
    return torch.from_numpy(scores)


def lines(*tensors):
    """The last axis of each, line by line."""
    return zip(*(tensor.reshape(-1, tensor.shape[-1]).tolist() for tensor in tensors), strict=True)


def ordered(line):
    """The words of a line from the likeliest on, the earlier one where two are alike."""
    return sorted(range(len(line)), key=lambda word: -line[word])


def keeps_only(line, kept, words):
    """Whether the words are left as they are, and all others are ruled out."""
    return kept == [score if word in words else -math.inf for word, score in enumerate(line)]


@given(some_scores(), st.integers(0, 9))
def test_top_k_keeps_exactly_k(scores, k):
    before = scores.clone()
    for line, kept in lines(scores, keep_top_k(scores, k)):
        assert keeps_only(line, kept, ordered(line)[: k or None])
    assert scores.equal(before)


@given(some_scores(), st.floats(0.001, 1))
def test_top_p_keeps_the_smallest_set_that_has_the_share(scores, p):
    before = scores.clone()
    for line, kept in lines(scores, keep_top_p(scores, p)):
        words = ordered(line)
        shares = torch.tensor([line[word] for word in words], dtype=torch.float64).softmax(0).tolist()
        count = sum(score > -math.inf for score in kept)
        assert keeps_only(line, kept, words[:count])
        assert count >= 1
        rounding = 1e-12
        assert math.fsum(shares[:count]) >= p - rounding
        # One word less would not do, unless p is 1 and all are kept that are not ruled out.
        assert math.fsum(shares[: count - 1]) < p + rounding
        if p == 1:
            assert count == sum(score > -math.inf for score in line)
    assert scores.equal(before)


@given(some_scores(), st.data())
def test_top_p_keeps_no_word_more_where_a_set_has_just_the_share(scores, data):
    line = scores.reshape(-1, scores.shape[-1])[:1]
    reached = line.double().sort(descending=True, stable=True).values.softmax(-1).cumsum(-1)[0].tolist()
    p = data.draw(st.sampled_from(reached))
    count = 1 + sum(share < p for share in reached)
    kept = keep_top_p(line, min(p, 1.0)).isfinite().sum()
    assert int(kept) == (count if p < 1 else line.isfinite().sum())


@pytest.mark.parametrize(("count", "kept"), [(2, 1), (4, 3), (8, 1), (8, 7), (32, 31), (32, 32)])
def test_of_equal_words_just_enough_stay(count, kept):
    filtered = keep_top_p(torch.full((2, 3, count), 1.25), kept / count)
    assert filtered.isfinite().sum(-1).eq(kept).all()
    assert filtered[..., :kept].isfinite().all()


@given(some_scores(), st.floats(0.01, 100))
def test_temperature_keeps_the_order(scores, temperature):
    tempered = temper(scores, temperature)
    torch.testing.assert_close(tempered.double().softmax(-1), (scores.double() / temperature).softmax(-1))
    for line, other in lines(scores, tempered):
        words = ordered(line)
        assert [other[word] for word in words] == sorted(other, reverse=True)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_temperature_makes_two_words_the_likeliest(dtype, temperature):
    scores = torch.tensor([[1.0, 50.0, 100.0], [-3.0, -2.0, -9.0]]).to(dtype)
    tempered = temper(scores, temperature)
    assert tempered.argmax(-1).tolist() == [2, 1]
    assert not tempered.isnan().any()
    assert tempered.amax(-1).tolist() == [0, 0]


@given(some_scores())
def test_open_filters_change_nothing(scores):
    size = scores.shape[-1]
    for same in (temper(scores, 1), keep_top_k(scores, 0), keep_top_k(scores, size), keep_top_p(scores, 1.0)):
        assert same.equal(scores)


@given(some_scores(), st.integers(1, 5), st.floats(0.05, 0.95))
def test_a_filter_twice_is_the_filter(scores, k, p):
    once = keep_top_k(scores, k)
    assert keep_top_k(once, k).equal(once)
    assert keep_top_p(keep_top_p(scores, 1e-9), p).equal(keep_top_p(scores, 1e-9))


@given(some_scores(), st.integers(1, 5), st.floats(0.05, 1))
def test_a_line_is_filtered_for_itself(scores, k, p):
    flat = scores.reshape(-1, scores.shape[-1])
    for function, value in ((keep_top_k, k), (keep_top_p, p), (temper, 1.7)):
        together = function(scores, value).reshape(flat.shape)
        assert together.equal(torch.stack([function(line, value) for line in flat]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_kept_is_left_as_it_is(dtype):
    scores = torch.randn(3, 8).to(dtype)
    for filtered in (keep_top_k(scores, 3), keep_top_p(scores, 0.6)):
        assert filtered.dtype == dtype
        assert filtered.isfinite().any(dim=-1).all()
        assert filtered[filtered.isfinite()].equal(scores[filtered.isfinite()])
