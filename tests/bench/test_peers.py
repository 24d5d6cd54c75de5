"""The peers get rectangles with start and end in place; the floor has the products of a decoding step."""

import numpy as np
from bench.floor import key_counts, linear_shapes
from bench.peers.rectangles import pad_batch
from bench.pieces import END, PADDING, START, VOCABULARY, Batch, Corpus
from bench.recipe import LENGTH, SIZES


def test_the_decoder_reads_what_it_said_before() -> None:
    random = np.random.default_rng(1)
    rows = [random.integers(3, 50, length, dtype=np.int32) for length in (2, 5, 1)]
    padded = pad_batch(Batch(rows[::-1], rows))
    for place, row in enumerate(rows):
        assert padded.target_in[place].tolist() == [START, *row, *[PADDING] * (5 - len(row))]
        assert padded.target_out[place].tolist() == [*row, END, *[PADDING] * (5 - len(row))]
        assert padded.source[2 - place].tolist() == [*row, END, *[PADDING] * (5 - len(row))]


def test_the_products_are_those_of_the_decoder() -> None:
    size = SIZES["base"]
    weights = sum(rows * columns for rows, columns in linear_shapes(size))
    attention, feed_forward = 6 * size.width**2, 2 * size.width * size.feed_forward
    assert weights == size.layers * (attention + feed_forward) + VOCABULARY * size.width


def test_keys_are_counted_in_the_middle_of_the_output() -> None:
    rows = [np.zeros(length, np.int32) for length in (3, 5, 11)]
    corpus = Corpus(rows, rows, [np.array([0, 1]), np.array([2])])
    assert key_counts(corpus, SIZES["tiny"]) == [LENGTH // 2, 9] * 4
