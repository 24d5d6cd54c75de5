"""Which path through the attention door is the faster one on this CPU: the table that `choose_path` rests on.

    nice python -m bench.attention_paths

Forward and backward of one rectangle of about 4,096 tokens, rows of 16 to 1,024 of them: the plain path, and the
fused kernel with its own triangle (a decoder's self-attention) and with the matrix of 0 and -inf (everything else).
A time is the least of a few, in milliseconds; compare those of one line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from bench.competition import lay_out
from bench.recipe import SEED, THREADS
from leftward.model import sight
from leftward.model.attention import choose_path, fused, plain
from leftward.model.precision import computing_in
from leftward.packed import Places
from leftward.settings import Precision

TOKENS = 4_096
WIDTHS = (16, 32, 64, 128, 192, 256, 384, 512, 1024)
SHAPES = {32: 4, 64: 8}  # head size: heads, as in sizes tiny and base
PRECISIONS: tuple[Precision, ...] = ("float32", "medium", "bfloat16")


def least_seconds(works: dict[str, Callable[[], object]], *, patience: float) -> dict[str, float]:
    """The least time of each, in turn, once to warm up and then for `patience` seconds together."""
    least = dict.fromkeys(works, float("inf"))
    for work in works.values():
        work()
    begun = time.perf_counter()
    while time.perf_counter() - begun < patience:
        for name, work in works.items():
            start = time.perf_counter()
            work()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def make_works(width: int, size: int, precision: Precision) -> tuple[dict[str, Callable[[], object]], str]:
    """What is measured at this width of rows, and the path that the door would take."""
    rows, heads = TOKENS // width, SHAPES[size]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    queries = torch.randn(rows, heads, 1, width, size, dtype=dtype, requires_grad=True)
    keys, values = (torch.randn(rows, heads, width, size, dtype=dtype, requires_grad=True) for _ in range(2))
    at = torch.arange(width).expand(rows, width)
    places = Places(torch.zeros_like(at), at, at)
    matrix = sight.matrix(sight.Leftward(), places, places, dtype)[:, None, None]
    slope = torch.randn(rows, heads, 1, width, size, dtype=dtype)
    scale = size**-0.5

    def both_ways(forward: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), (queries, keys, values), slope)

    works = {
        "plain": both_ways(lambda: plain(queries, keys, values, matrix, None, scale)[0]),
        "fused, triangle": both_ways(lambda: fused(queries, keys, values, None, None, scale)),
        "fused, matrix": both_ways(lambda: fused(queries, keys, values, matrix, None, scale)),
    }
    return works, choose_path(queries, keys)


def main() -> None:
    """Measure all of it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patience", type=float, default=0.6, help="seconds for each line of the table")
    patience = parser.parse_args().patience
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    lines = []
    for precision in PRECISIONS:
        # Tensors of bfloat16 are what autocast hands to the door.
        with computing_in(precision) if precision != "bfloat16" else nullcontext():
            for size in SHAPES:
                for width in WIDTHS:
                    works, chosen = make_works(width, size, precision)
                    seconds = least_seconds(works, patience=patience)
                    fastest = min(seconds, key=lambda name: seconds[name])
                    times = (f"{1_000 * second:.1f}" for second in seconds.values())
                    lines.append((precision, str(size), str(width), *times, fastest, chosen))
    heads = ("precision", "head", "width", "plain", "fused, triangle", "fused, matrix", "fastest", "the door takes")
    print(lay_out(heads, lines))


if __name__ == "__main__":
    main()
