"""One competitor's side of a benchmark: what it is asked on the command line, and the JSON lines it answers.

A competitor is a program that builds its model and hands over one step; the rows, their order, the counting
of tokens and the clock are the same for all of them, here:

    task = read_task("what this program measures", precisions=("float32", "medium"))
    ...build a model of task.size...
    train(task, step, parameters=...)     # step(batch) -> the loss, a number
    decode(task, step, parameters=...)    # step(batch) -> ids, rows x LENGTH

It prints a line {"window": {"tokens", "seconds", "other_cpu"}} for every window, then one
{"end": {"parameters", "start_mb", "peak_mb", "losses"}}.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from bench.meter import End, peak_mb, resident_mb, time_windows
from bench.pieces import Batch, Corpus
from bench.recipe import LENGTH, SEED, SIZES, THREADS, Size


class Shaped(Protocol):
    """A tensor or an array."""

    @property
    def shape(self) -> Sequence[int]:
        """Its lengths."""
        ...


@dataclass(frozen=True)
class Task:
    """What a competitor is asked to do."""

    size: Size
    precision: str
    corpus: Corpus
    warm: int
    steps: int
    every: int
    start_mb: float
    beam: int  # 1: greedy


def read_task(purpose: str, *, precisions: Sequence[str]) -> Task:
    """Read the command line, set the threads and the seed, and load the batches."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--precision", choices=list(precisions), required=True)
    parser.add_argument("--batches", type=Path, required=True, help="a file made by bench/pieces.py")
    parser.add_argument("--warm", type=int, required=True, help="steps before the first window")
    parser.add_argument("--steps", type=int, required=True, help="steps to measure")
    parser.add_argument("--every", type=int, required=True, help="steps of one window")
    parser.add_argument("--beam", type=int, default=1, help="hypotheses of a beam search; 1: greedy")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(SEED)
    corpus = Corpus.load(given.batches)
    return Task(
        SIZES[given.size], given.precision, corpus, given.warm, given.steps, given.every, resident_mb(), given.beam
    )


def train(task: Task, step: Callable[[Batch], float], *, parameters: int) -> None:
    """Measure whole training steps: from rows of ids to changed weights."""
    losses: list[float] = []

    def count(number: int) -> int:
        batch = task.corpus.batch(number)
        losses.append(round(step(batch), 5))
        return batch.target_tokens

    _measure(task, count, parameters, losses)


def decode(task: Task, step: Callable[[Batch], Shaped], *, parameters: int) -> None:
    """Measure greedy decoding: from source rows to `LENGTH` ids for each, the encoder included."""

    def count(number: int) -> int:
        batch = task.corpus.batch(number)
        written = tuple(step(batch).shape)
        if written != (len(batch.sources), LENGTH):
            raise ValueError(f"{len(batch.sources)} rows of {LENGTH} tokens were asked for, but {written} came")
        return len(batch.sources) * LENGTH

    _measure(task, count, parameters, [])


def _measure(task: Task, count: Callable[[int], int], parameters: int, losses: list[float]) -> None:
    for window in time_windows(count, warm=task.warm, steps=task.steps, every=task.every):
        print(json.dumps({"window": dataclasses.asdict(window)}), flush=True)
    end = End(parameters, round(task.start_mb, 1), round(peak_mb(), 1), losses)
    print(json.dumps({"end": dataclasses.asdict(end)}), flush=True)
