"""From what a person asked for to a whole run: what was not said is chosen from the data and the machine.

Nothing here is measured with a clock: the same files on the same kind of machine give the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leftward.errors import SettingsError
from leftward.settings import Data, Model, Pieces, Precision, Run, Stack, Training
from leftward.wishes import TrainWishes

Value = TypeVar("Value")

LARGEST_VOCABULARY = 10_000_000  # what trains it sets aside room for all of it
MOST_THREADS = 1024  # with very many torch dies without a word


@dataclass(frozen=True)
class Size:
    """A named size: layers of each stack, and the widths."""

    layers: int
    width: int
    feed_forward: int
    heads: int
    dropout: float


SIZES = {
    "tiny": Size(4, 128, 256, 4, 0.3),
    "small": Size(4, 256, 1024, 4, 0.2),
    "base": Size(6, 512, 2048, 8, 0.1),
    "big": Size(6, 1024, 4096, 16, 0.3),
}


@dataclass(frozen=True)
class Facts:
    """What is known before a run: of the data and of the machine."""

    rows: int  # pairs, or documents
    target_tokens: int  # predicted in one pass over the training data
    vocabulary: int
    source_vocabulary: int  # 0 where both sides share one
    cores: int
    device: str
    medium_is_float32: bool  # whether the faster kernels of "medium" err no more than float32 does


@dataclass
class Choices:
    """Settings as they are made, and where each came from."""

    origins: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, wished: Value | None, choose: Callable[[], tuple[Value, str]]) -> Value:
        """What was wished for, or else what is chosen, noted with its reason."""
        if wished is not None:
            self.origins[name] = "asked for"
            return wished
        value, reason = choose()
        self.origins[name] = reason
        return value

    @property
    def chosen(self) -> tuple[str, ...]:
        """A line for each setting that nobody asked for and that is no plain default."""
        return tuple(
            f"{name}: {reason}" for name, reason in self.origins.items() if reason not in ("asked for", "default")
        )


def choose_vocabulary(wished: int | None, rows: int, choices: Choices) -> int:
    """How many tokens to train the tokenizer for."""
    if wished is not None and wished > LARGEST_VOCABULARY:
        raise SettingsError(
            f"a vocabulary of {wished:,} is too large",
            where="--vocabulary",
            hint=f"give {LARGEST_VOCABULARY:,} at most",
        )
    return choices.take(
        "vocabulary",
        wished,
        lambda: (10_000, "few lines") if rows < 500_000 else (32_000, "many lines"),
    )


def choose_held_out(share: float | None, rows: int, choices: Choices) -> int:
    """How many pairs or documents to split off for validation."""
    if share is not None:
        if not 0 < share < 1:
            raise SettingsError(
                f"a share of {share:g} cannot be split off", where="--validation-share", hint="give one between 0 and 1"
            )
        choices.origins["validation_share"] = "asked for"
        return max(1, round(rows * share))
    number = max(1, min(2000, max(rows // 100, min(500, rows // 10))))
    choices.origins["validation_share"] = f"{number:,} of {rows:,} are split off, because no validation files are given"
    return number


def make_run(wishes: TrainWishes, data: Data, pieces: Pieces, facts: Facts, choices: Choices) -> Run:
    """The whole run."""
    model = _make_model(wishes, data, facts, choices)
    training = _make_training(wishes, data, facts, model, choices)
    return Run(model, pieces, data, training, choices.chosen)


def _make_model(wishes: TrainWishes, data: Data, facts: Facts, choices: Choices) -> Model:
    size = SIZES[choices.take("size", wishes.size, lambda: _choose_size(facts))]

    def take(name: str, wished: Value | None, default: Value) -> Value:
        return choices.take(name, wished, lambda: (default, "default"))

    width = take("width", wishes.width, size.width)
    stack = Stack(
        layers=take("layers", wishes.layers, size.layers),
        heads=take("heads", wishes.heads, size.heads),
        feed_forward=take("feed_forward", wishes.feed_forward, size.feed_forward),
    )
    dropout = take("dropout", wishes.dropout, size.dropout)
    context = take("context", wishes.context, 512 if data.is_pair else 256)
    common: dict[str, Any] = {"vocabulary": facts.vocabulary, "width": width, "context": context, "dropout": dropout}
    if data.is_pair:
        return Model(
            **common,
            decoder=stack,
            encoder=stack,
            source_vocabulary=facts.source_vocabulary,
            tie="target-output" if facts.source_vocabulary else "all",
        )
    return Model(
        **common, decoder=stack, positions="rotary", norm_place="before", activation="gelu", tie="target-output"
    )


def _choose_size(facts: Facts) -> tuple[str, str]:
    seen = f"{facts.target_tokens:,} tokens to learn from"
    if facts.target_tokens < 5_000_000:
        return "tiny", seen
    if facts.target_tokens < 50_000_000 or facts.device == "cpu":
        return "small", seen if facts.device != "cpu" else f"{seen}, on a processor without a GPU"
    return "base", seen


def _make_training(wishes: TrainWishes, data: Data, facts: Facts, model: Model, choices: Choices) -> Training:
    def take(name: str, wished: Value | None, default: Value) -> Value:
        return choices.take(name, wished, lambda: (default, "default"))

    if wishes.threads is not None and wishes.threads > MOST_THREADS:
        raise SettingsError(
            f"{wishes.threads:,} threads are too many", where="--threads", hint=f"this machine has {facts.cores} cores"
        )
    batch_tokens = choices.take("batch_tokens", wishes.batch_tokens, lambda: _choose_batch(facts, model))
    steps = choices.take("steps", wishes.steps, lambda: _choose_steps(facts, model, batch_tokens))
    every, reason = max(1, min(1000, steps // 20)), "a twentieth of the steps"
    rate = 0.36 / model.width
    return Training(
        steps=steps,
        batch_tokens=batch_tokens,
        learning_rate=choices.take("learning_rate", wishes.learning_rate, lambda: (rate, f"a width of {model.width}")),
        warm_up=choices.take("warm_up", wishes.warm_up, lambda: (min(2000, steps // 10), "a tenth of the steps")),
        validate_every=choices.take("validate_every", wishes.validate_every, lambda: (every, reason)),
        save_every=choices.take("save_every", wishes.save_every, lambda: (every, reason)),
        log_every=take("log_every", wishes.log_every, 10),
        schedule="inverse-root" if data.is_pair else "cosine",
        smoothing=0.1 if data.is_pair else 0.0,
        weight_decay=0.0 if data.is_pair else 0.1,
        betas=(0.9, 0.98) if data.is_pair else (0.9, 0.99),
        precision=choices.take("precision", wishes.precision, lambda: _choose_precision(facts)),
        seed=take("seed", wishes.seed, 1),
        threads=choices.take("threads", wishes.threads, lambda: (facts.cores, f"{facts.cores} cores")),
        device=choices.take("device", wishes.device, lambda: (facts.device, "what this machine has")),
    )


def _choose_batch(facts: Facts, model: Model) -> tuple[int, str]:
    # Twenty steps a pass at least: a small corpus learns nothing from a handful of large steps.
    most = 4096 if facts.device == "cpu" else 24_576
    batch = max(min(most, facts.target_tokens // 20), min(model.context, most), 256)
    return batch, f"{facts.target_tokens:,} tokens to learn from"


def _choose_steps(facts: Facts, model: Model, batch_tokens: int) -> tuple[int, str]:
    passes = 30
    steps = math.ceil(passes * facts.target_tokens / batch_tokens)
    if facts.device == "cpu":
        # Six operations for each weight and token, on both sides, at what a core is good for at least.
        hour = int(3600 * facts.cores * 5e10 / (12 * count_matrix_weights(model) * batch_tokens))
        if hour < steps:
            return max(hour, 100), f"about an hour on {facts.cores} cores"
    return max(steps, 100), f"{passes} passes over the data"


def count_matrix_weights(model: Model) -> int:
    """The weights of the decoder's matrices and the output projection: what a token costs.

    >>> count_matrix_weights(Model(vocabulary=10, width=4, decoder=Stack(layers=1, heads=2, feed_forward=8)))
    168
    """
    stack = model.decoder
    size = model.head_size(stack)
    attention = model.width * size * (2 * stack.heads + 2 * (stack.key_heads or stack.heads))
    layer = attention * (2 if model.has_encoder else 1) + 2 * model.width * stack.feed_forward
    return stack.layers * layer + model.vocabulary * model.width


def _choose_precision(facts: Facts) -> tuple[Precision, str]:
    if facts.device == "cuda":
        return "bfloat16", "a GPU"
    if facts.device == "cpu" and facts.medium_is_float32:
        return "medium", "its faster kernels err no more than float32 on this processor"
    return "float32", "default"
