"""The likeliest word, wherever it stands and however many there are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leftward.decoding.logits import keep_top_k
from leftward.decoding.sample import STRETCH, choose_by_lot, choose_greedily
from leftward.settings import Sample


@given(
    st.integers(1, 4),
    st.integers(2, 4 * STRETCH + 3),
    st.integers(0, 2**32),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.sampled_from([3, 50, 10**6]),
)
def test_greedy_writing_takes_the_first_of_the_likeliest_words(rows, words, seed, dtype, kinds):
    """Of few kinds of scores many are alike."""
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randint(kinds, (rows, words), generator=generator) / kinds).to(dtype)
    ruled_out = torch.rand(scores.shape, generator=generator) < 0.1
    scores[:, 1:] = scores.masked_fill(ruled_out, -torch.inf)[:, 1:]
    expected = [line.index(max(line)) for line in scores.tolist()]
    assert choose_greedily(scores).tolist() == expected
    if kinds == 3:
        assert choose_by_lot(scores, torch.zeros(rows), Sample(top_k=1)).tolist() == expected


@pytest.mark.parametrize("words", [2, STRETCH, 2 * STRETCH, 2 * STRETCH + 1, 5 * STRETCH - 1, 32_000])
def test_the_likeliest_word_is_found_in_every_place(words):
    places = torch.tensor([*{0, 1, words // 2, STRETCH - 1, STRETCH, 2 * STRETCH - 1, 2 * STRETCH, words - 1}])
    places = places[places < words]
    scores = torch.full((len(places), words), -5.0)
    scores[torch.arange(len(places)), places] = -4.0
    assert choose_greedily(scores).equal(places)


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_a_draw_falls_among_the_words_that_are_kept(k, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(4, (5, 9), generator=generator).float()
    words = choose_by_lot(scores, torch.rand(5, generator=generator), Sample(top_k=k))
    assert keep_top_k(scores, k)[torch.arange(5), words].isfinite().all()
