"""The training loop: take a batch, learn from it, now and then look how far one is.

The loop knows rows of ids, not text, and writes nothing to disk: what is to be kept goes out as events, and whoever
runs the loop saves, prints or stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import AdamW

from leftward.errors import LeftwardError
from leftward.model.precision import computing_in
from leftward.model.transformer import Transformer
from leftward.settings import Training
from leftward.text.samples import Counts
from leftward.text.stream import Batch, Place
from leftward.training.objective import Lesson, loss_of, shift
from leftward.training.optimizer import clip
from leftward.training.schedule import rate_at

# So many steps in a row without a finite gradient, and a run that will not recover is stopped.
PATIENCE = 3


@dataclass
class Progress:
    """How far a run is; together with weights, optimizer and random state it is all that a run needs to go on."""

    step: int = 0
    place: Place = field(default_factory=Place)
    target_tokens: int = 0  # predicted since the start
    seconds: float = 0.0  # spent since the start
    loss_since: float = 0.0  # summed since the last row of the log
    tokens_since: int = 0
    skipped: int = 0  # steps without a finite gradient
    skipped_in_row: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    counts: Counts = field(default_factory=Counts)  # what became of the samples


@dataclass(frozen=True)
class Learned:
    """A step is done, with all that was due after it."""

    tokens: int


@dataclass(frozen=True)
class Logged:
    """A row for the log: the mean loss since the last one, in nats per predicted token."""

    loss: float
    learning_rate: float
    gradient_norm: float


@dataclass(frozen=True)
class Validated:
    """The loss on text that is not trained on; `is_best` where no earlier one was lower."""

    loss: float
    is_best: bool


@dataclass(frozen=True)
class Due:
    """It is time to save."""


Event = Learned | Logged | Validated | Due


def lesson_of(batch: Batch, device: str) -> Lesson:
    """The rows of a batch as a lesson."""
    return shift(batch.target, batch.source).to(device)


def learn(model: Transformer, optimizer: AdamW, batch: Batch, training: Training, step: int) -> tuple[Tensor, Tensor]:
    """One optimizer step; returns the summed loss without smoothing, and the norm of the gradient.

    A batch of more tokens than fit at once is learned from in parts. Every part counts by its tokens, so the step is
    the same as if it had been taken whole.
    """
    parts = math.ceil(batch.predicted / training.tokens_at_once)
    shares = [batch.share(part, parts) for part in range(parts)]
    summed = torch.zeros((), device=training.device)
    for share in shares:
        if not share.target:
            continue
        with computing_in(training.precision, training.device):
            loss = loss_of(model, lesson_of(share, training.device), smoothing=training.smoothing)
            (loss.total / batch.predicted).backward()
        summed += loss.plain
    norm = clip(model, training.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step, training)
    if torch.isfinite(norm) and torch.isfinite(summed):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return summed, norm


@torch.no_grad()
def validate(model: Transformer, batches: Iterable[Batch], training: Training) -> float:
    """The mean loss over all predictions of some batches, in nats per token."""
    was_training = model.training
    model.eval()
    summed, tokens = 0.0, 0
    for batch in batches:
        with computing_in(training.precision, training.device):
            loss = loss_of(model, lesson_of(batch, training.device))
        summed += loss.plain.double().item()
        tokens += loss.count
    model.train(was_training)
    return summed / tokens


def run(
    model: Transformer,
    optimizer: AdamW,
    batches: Callable[[Place], Iterator[Batch]],
    validation: Callable[[], Iterable[Batch]] | None,
    training: Training,
    progress: Progress,
) -> Iterator[Event]:
    """Train from where `progress` stands to the last step, telling what happens.

    `progress` is brought up to date before every event.
    """
    model.train()
    started = time.perf_counter() - progress.seconds
    coming = batches(progress.place)
    while progress.step < training.steps:
        batch = next(coming)
        summed, norm = learn(model, optimizer, batch, training, progress.step + 1)
        progress.step += 1
        progress.place = batch.after
        progress.counts += batch.counts
        _take_in(progress, batch, summed.item(), norm.item(), training)
        progress.seconds = time.perf_counter() - started
        is_last = progress.step == training.steps
        if progress.tokens_since and (progress.step % training.log_every == 0 or is_last):
            loss = progress.loss_since / progress.tokens_since
            progress.loss_since, progress.tokens_since = 0.0, 0
            yield Logged(loss, rate_at(progress.step, training), norm.item())
        if validation is not None and (progress.step % training.validate_every == 0 or is_last):
            loss = validate(model, validation(), training)
            progress.seconds = time.perf_counter() - started
            is_best = math.isfinite(loss) and (progress.best_loss is None or loss < progress.best_loss)
            if is_best:
                progress.best_loss, progress.best_step = loss, progress.step
            yield Validated(loss, is_best)
        if progress.step % training.save_every == 0 or is_last:
            yield Due()
            progress.seconds = time.perf_counter() - started
        yield Learned(batch.predicted)


def _take_in(progress: Progress, batch: Batch, summed: float, norm: float, training: Training) -> None:
    """Count a step; one without a finite gradient moved no weight, and several in a row end the run."""
    progress.target_tokens += batch.predicted
    if math.isfinite(norm) and math.isfinite(summed):
        progress.loss_since += summed
        progress.tokens_since += batch.predicted
        progress.skipped_in_row = 0
        return
    progress.skipped += 1
    progress.skipped_in_row += 1
    if progress.skipped_in_row >= PATIENCE:
        raise LeftwardError(
            f"{PATIENCE} steps in a row gave no finite gradient",
            where=f"step {progress.step}, window {batch.place.window} batch {batch.place.batch} of the data",
            hint=f"take a learning rate below {training.learning_rate:g}, or a longer warm-up",
        )
