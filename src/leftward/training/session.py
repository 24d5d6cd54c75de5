"""One run of training: take a prepared one, train, save, end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from leftward import checkpoint
from leftward.checkpoint import State
from leftward.disk import Log, lock, make_folder, sweep
from leftward.model.transformer import Transformer
from leftward.settings import Training
from leftward.text.samples import Counts
from leftward.text.stream import Batch, Place, Stream, once
from leftward.training import loop
from leftward.training.optimizer import make_optimizer, optimizer_state, put_optimizer_state
from leftward.training.preparation import Prepared, refuse_other_run

_RANDOM = "random"


@dataclass(frozen=True)
class Trained:
    """What came of a run."""

    folder: Path
    step: int
    steps: int
    target_tokens: int
    seconds: float
    best_loss: float | None
    best_step: int | None
    skipped: int
    counts: Counts
    is_done: bool  # or else it was interrupted, and can be resumed


@dataclass(frozen=True)
class Report:
    """What whoever watches a run is told, after each event."""

    event: loop.Event
    progress: loop.Progress
    training: Training


def train(
    prepared: Prepared,
    *,
    report: Callable[[Report], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train to the end, or until `should_stop` says so after a step; either way the state is saved."""
    folder, kit, training = prepared.folder, prepared.kit, prepared.training
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    # Before the folder: a model that does not fit the machine leaves no trace.
    model = Transformer(kit.run.model).to(training.device)
    optimizer = make_optimizer(model, training)
    make_folder(folder)
    with lock(folder):
        if prepared.is_new:
            # Another run may have taken the folder while this one made its tokenizer.
            refuse_other_run(folder)
            checkpoint.begin_folder(folder, kit)
        sweep(folder)
        sweep(folder / checkpoint.CHECKPOINTS)
        progress = loop.Progress()
        log = Log(folder / checkpoint.LOG)
        if prepared.checkpoint is not None:
            progress = _restore(prepared.checkpoint, model, optimizer)
        log.cut_after(progress.step)
        stream = Stream([prepared.training_samples], budget=training.batch_tokens, seed=training.seed)
        keeper = _Keeper(prepared, model, optimizer, log)
        stopped = False
        for event in loop.run(model, optimizer, stream.batches, _validation(prepared), training, progress):
            keeper.keep(event, progress)
            report(Report(event, progress, training))
            # The step's rows and saves came before it was said to be learned, so nothing of it is lost.
            if isinstance(event, loop.Learned) and should_stop() and progress.step < training.steps:
                stopped = True
                if checkpoint.newest_step(folder) != progress.step:
                    keeper.save(progress)
                break
        if not stopped and not checkpoint.is_sound(folder):
            keeper.serve(progress)
    return Trained(
        folder=folder,
        step=progress.step,
        steps=training.steps,
        target_tokens=progress.target_tokens,
        seconds=progress.seconds,
        best_loss=progress.best_loss,
        best_step=progress.best_step,
        skipped=progress.skipped,
        counts=progress.counts,
        is_done=not stopped,
    )


@dataclass(frozen=True, eq=False)
class _Keeper:
    """Writes down what the loop tells."""

    prepared: Prepared
    model: Transformer
    optimizer: torch.optim.AdamW
    log: Log

    def keep(self, event: loop.Event, progress: loop.Progress) -> None:
        clock = {"target_tokens": progress.target_tokens, "seconds": round(progress.seconds, 3)}
        if isinstance(event, loop.Logged):
            row = {"loss": event.loss, **clock, "learning_rate": event.learning_rate}
            if np.isfinite(event.gradient_norm):
                row["gradient_norm"] = event.gradient_norm
            if progress.skipped:
                row["skipped"] = progress.skipped
            self.log.append(progress.step, row)
        elif isinstance(event, loop.Validated):
            loss = event.loss if np.isfinite(event.loss) else None
            self.log.append(progress.step, {"validation_loss": loss, **clock})
            if event.is_best:
                self.serve(progress)
        elif isinstance(event, loop.Due):
            if self.prepared.validation_samples is None:
                self.serve(progress)
            self.save(progress)  # last: what a kill took before it is done again by the run that goes on

    def serve(self, progress: loop.Progress) -> None:
        """Make the present weights those that serve."""
        facts = {
            "step": progress.step,
            "weights": "the best by validation" if progress.best_step == progress.step else "the last",
            "validation_loss": progress.best_loss if progress.best_step == progress.step else None,
            "torch": str(torch.__version__),
        }
        weights = checkpoint.weights_of(self.model)
        checkpoint.publish_weights(self.prepared.folder, self.prepared.kit, weights, facts)

    def save(self, progress: loop.Progress) -> None:
        """Save a whole state."""
        tensors = optimizer_state(self.model, self.optimizer)
        tensors[_RANDOM] = torch.get_rng_state()
        if self.prepared.training.device == "cuda":
            tensors[f"{_RANDOM}.cuda"] = torch.cuda.get_rng_state()
        facts = {
            "progress": asdict(progress),
            "data": {name: list(fingerprint) for name, fingerprint in self.prepared.files.items()},
            "torch": str(torch.__version__),
        }
        if (self.prepared.folder / checkpoint.LOG).exists():
            self.log.sync()  # or a power loss keeps the checkpoint and loses the rows it counts on
        weights = checkpoint.weights_of(self.model)
        state = State(weights, tensors, facts)
        checkpoint.save_state(self.prepared.folder, self.prepared.kit, progress.step, state)


def _restore(path: Path, model: Transformer, optimizer: torch.optim.AdamW) -> loop.Progress:
    state = checkpoint.load_state(path)
    checkpoint.put_weights(model, state.weights, where=str(path))
    facts = dict(state.facts["progress"])
    facts["place"], facts["counts"] = Place(**facts["place"]), Counts(**facts["counts"])
    progress = loop.Progress(**facts)
    put_optimizer_state(model, optimizer, state.tensors, step=progress.step - progress.skipped, where=str(path))
    torch.set_rng_state(state.tensors[_RANDOM])
    if f"{_RANDOM}.cuda" in state.tensors:
        torch.cuda.set_rng_state(state.tensors[f"{_RANDOM}.cuda"])
    return progress


def _validation(prepared: Prepared) -> Callable[[], Iterable[Batch]] | None:
    samples = prepared.validation_samples
    if samples is None:
        return None
    budget = max(prepared.training.tokens_at_once // 4, samples.context)

    def batches() -> Iterator[Batch]:
        return once(samples, budget)

    return batches
