"""The matrix products of decoding and nothing else: what is left to gain on this machine.

One step is every linear map of the decoder for one token of each row, the projection to the vocabulary too,
and the products of attention at half the output's length. The encoder, norms, softmax, arg-max and cache are
missing: the tokens per second are a ceiling for every engine that calls these products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bench.pieces import VOCABULARY, Batch, Corpus
from bench.recipe import LENGTH, Size
from bench.task import decode, read_task


def linear_shapes(size: Size) -> list[tuple[int, int]]:
    """(out, in) of every linear map of one decoding step; query, key and value of a token are one map."""
    width = size.width
    layer = [
        (3 * width, width),
        (width, width),
        (width, width),  # cross-attention asks with the token; its keys and values were made with the source
        (width, width),
        (size.feed_forward, width),
        (width, size.feed_forward),
    ]
    return layer * size.layers + [(VOCABULARY, width)]


def main() -> None:
    """Measure them."""
    task = read_task(__doc__ or "", precisions=("float32", "medium"))
    torch.set_float32_matmul_precision("medium" if task.precision == "medium" else "highest")
    rows = len(task.corpus.batches[0])
    weights = [torch.randn(shape) for shape in linear_shapes(task.size)]
    states = [torch.randn(rows, weight.shape[1]) for weight in weights]
    caches = [make_cache(task.size, rows, keys) for keys in key_counts(task.corpus, task.size)]
    query = torch.randn(rows * task.size.heads, 1, task.size.width // task.size.heads)
    written = torch.zeros(rows, LENGTH)

    def step(_batch: Batch) -> Tensor:
        with torch.inference_mode():
            for _ in range(LENGTH):
                for state, weight in zip(states, weights, strict=True):
                    functional.linear(state, weight)
                for keys, values in caches:
                    torch.bmm(torch.bmm(query, keys.transpose(1, 2)), values)
        return written

    decode(task, step, parameters=sum(weight.numel() for weight in weights))


def key_counts(corpus: Corpus, size: Size) -> list[int]:
    """How many keys a token meets in self- and cross-attention of every layer, on average over the output."""
    longest = [max(len(source) for source in corpus.batch(number).sources) for number in range(len(corpus.batches))]
    return [LENGTH // 2, round(sum(longest) / len(longest)) + 1] * size.layers


def make_cache(size: Size, rows: int, keys: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one attention; each site its own: one for all would stay in fast memory."""
    shape = (rows * size.heads, keys, size.width // size.heads)
    return torch.randn(shape), torch.randn(shape)


if __name__ == "__main__":
    main()
