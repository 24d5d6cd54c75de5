"""Leftward's whole training command: text files in, validation and checkpoints included.

A window holds one validation and one checkpoint, as often as a run of this length has them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

from bench.meter import End, Moment, peak_mb, resident_mb
from bench.pieces import DATA, SOURCE, TARGET, VOCABULARY
from bench.recipe import LEARNING_RATE, SEED, THREADS
from leftward.model.transformer import Transformer
from leftward.training.loop import Learned, Logged
from leftward.training.preparation import prepare
from leftward.training.session import Report, train
from leftward.wishes import TrainWishes


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--batches", type=Path, help="what the others read; here the text itself is read")
    parser.add_argument("--warm", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    given = parser.parse_args()
    start_mb = resident_mb()
    losses: list[float] = []
    marks: list[tuple[int, Moment]] = []

    def watch(report: Report) -> None:
        step = report.progress.step
        if isinstance(report.event, Logged):
            losses.append(round(report.event.loss, 5))
        if isinstance(report.event, Learned) and step >= given.warm and (step - given.warm) % given.every == 0:
            marks.append((report.progress.target_tokens, Moment.now()))

    with tempfile.TemporaryDirectory() as folder:
        wishes = TrainWishes(
            source=str(given.data / f"train.{SOURCE}"),
            target=str(given.data / f"train.{TARGET}"),
            out=str(Path(folder, "model")),
            size=given.size,
            precision=given.precision,
            vocabulary=VOCABULARY,
            batch_tokens=4096,
            learning_rate=LEARNING_RATE,
            warm_up=0,
            steps=given.warm + given.steps,
            validate_every=given.every,
            save_every=given.every,
            threads=THREADS,
            seed=SEED,
        )
        prepared = prepare(wishes)
        train(prepared, report=watch)
    for (tokens, before), (more, after) in itertools.pairwise(marks):
        print(json.dumps({"window": dataclasses.asdict(after.window_since(before, more - tokens))}))
    parameters = sum(weight.numel() for weight in Transformer(prepared.kit.run.model).parameters())
    print(json.dumps({"end": dataclasses.asdict(End(parameters, start_mb, peak_mb(), losses))}))


if __name__ == "__main__":
    main()
