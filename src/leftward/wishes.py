"""What a person may ask for: one field for each flag, None where nothing was said.

The command line makes its flags of these fields, and the Python functions take the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from leftward.errors import SettingsError
from leftward.settings import Beam, DocumentsBy, Greedy, PiecesKind, Precision, Sample, Strategy

SizeName = Literal["tiny", "small", "base", "big"]
DEFAULT_FOLDER = "leftward-model"
LARGEST = 2**53  # from here on sums overflow, and readers of JSON lose digits


def wish(help: str, group: str) -> Any:
    """A field that nobody has to fill in."""
    return field(default=None, metadata={"help": help, "group": group})


@dataclass(frozen=True, kw_only=True)
class TrainWishes:
    """What may be asked of training.

    >>> TrainWishes(source="a.en", target="a.de").steps is None
    True
    """

    source: str | None = wish("text to translate from, a sentence a line", "what to learn from")
    target: str | None = wish("its translation, line by line", "what to learn from")
    text: str | None = wish("one text, for a model that continues text", "what to learn from")
    documents: DocumentsBy | None = wish(
        "what one document of --text is: all, a line, or a paragraph", "what to learn from"
    )
    validation_source: str | None = wish("text to validate on", "what to learn from")
    validation_target: str | None = wish("its translation", "what to learn from")
    validation_text: str | None = wish("one text to validate on", "what to learn from")
    validation_share: float | None = wish("share to split off where there are no such files", "what to learn from")
    tokenizer: PiecesKind | None = wish("pieces of words (bpe), or characters", "how text becomes tokens")
    vocabulary: int | None = wish("how many tokens there are", "how text becomes tokens")
    separate_tokenizers: bool | None = wish("one tokenizer for each side", "how text becomes tokens")
    size: SizeName | None = wish("how large the model is", "the model")
    layers: int | None = wish("layers of each stack", "the model")
    width: int | None = wish("numbers in a token's vector", "the model")
    heads: int | None = wish("attention heads of each layer", "the model")
    feed_forward: int | None = wish("inner width of the feed-forward part", "the model")
    dropout: float | None = wish("share dropped at random while training", "the model")
    context: int | None = wish("the longest row, in tokens", "the model")
    batch_tokens: int | None = wish("predicted target tokens in a step, at most", "training")
    steps: int | None = wish("optimizer steps", "training")
    learning_rate: float | None = wish("its peak", "training")
    warm_up: int | None = wish("steps until the peak", "training")
    validate_every: int | None = wish("steps between validations", "training")
    save_every: int | None = wish("steps between checkpoints", "training")
    log_every: int | None = wish("steps between rows of the log", "training")
    precision: Precision | None = wish("arithmetic of matrix products", "training")
    seed: int | None = wish("another one gives another run", "training")
    threads: int | None = wish("processor threads", "the machine")
    device: str | None = wish("cpu, cuda or mps", "the machine")
    out: str | None = wish(f"the model folder ({DEFAULT_FOLDER})", "the run")
    resume: bool | None = wish("go on where the folder's run stopped", "the run")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int) and abs(value) > LARGEST:
                flag = f"--{entry.name.replace('_', '-')}"
                raise SettingsError(f"{value} is too large", where=flag, hint=f"give {LARGEST} at most")


StrategyName = Literal["greedy", "beam", "sample"]

_HOW, _MACHINE = "how to write", "the machine"

# The fields of each strategy, by the names of its flags.
_FIELDS = {
    "greedy": {},
    "beam": {"beam_size": "size", "length_penalty": "length_penalty", "n_best": "n_best"},
    "sample": {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "seed": "seed", "n_best": "n_best"},
}
_STRATEGIES = {"greedy": Greedy, "beam": Beam, "sample": Sample}


@dataclass(frozen=True, kw_only=True)
class MachineWishes:
    """What may be asked of any verb that runs a model."""

    threads: int | None = wish("processor threads", _MACHINE)
    device: str | None = wish("cpu, cuda or mps", _MACHINE)


@dataclass(frozen=True, kw_only=True)
class WritingWishes(MachineWishes):
    """What may be asked of writing.

    >>> WritingWishes(strategy="beam", beam_size=4).choose_strategy("greedy")
    Beam(size=4, length_penalty=1.0, n_best=1)
    """

    strategy: StrategyName | None = wish("how each next token is chosen", _HOW)
    beam_size: int | None = wish("hypotheses kept side by side (beam)", _HOW)
    length_penalty: float | None = wish("power of the length a score is divided by (beam)", _HOW)
    temperature: float | None = wish("above 1 bolder, below 1 more careful (sample)", _HOW)
    top_k: int | None = wish("draw among so many likeliest tokens (sample)", _HOW)
    top_p: float | None = wish("draw among the likeliest that make up this share (sample)", _HOW)
    seed: int | None = wish("another one draws other texts (sample)", _HOW)
    n_best: int | None = wish("how many texts for each row (beam, sample)", _HOW)
    max_new: int | None = wish("tokens written, at most", _HOW)
    to: str | None = wish("target language, where the model knows several", _HOW)
    exact: bool | None = wish("the same bits whatever else is in the batch; slower", _HOW)

    def choose_strategy(self, default: StrategyName) -> Strategy:
        """The strategy that was asked for; a field of another one is an error."""
        name = self.strategy or default
        mine = _FIELDS[name]
        for other in ("beam", "sample"):
            for flag in _FIELDS[other]:
                if flag not in mine and getattr(self, flag) is not None:
                    raise SettingsError(
                        f"--{flag.replace('_', '-')} belongs to the strategy {other}, and this is {name}",
                        where=f"--{flag.replace('_', '-')}",
                        hint=f"add --strategy {other}, or leave it out",
                    )
        if self.max_new is not None and self.max_new < 1:
            raise SettingsError(f"max-new is {self.max_new}", where="--max-new", hint="it must be at least 1")
        given = {field: getattr(self, flag) for flag, field in mine.items() if getattr(self, flag) is not None}
        return _STRATEGIES[name](**given)


@dataclass(frozen=True, kw_only=True)
class EvaluateWishes(WritingWishes):
    """What may be asked of evaluation."""

    source: str | None = wish("text to translate, a sentence a line", "what to evaluate on")
    target: str | None = wish("its true translation, line by line", "what to evaluate on")
    text: str | None = wish("one text, for a model that continues text", "what to evaluate on")


@dataclass(frozen=True, kw_only=True)
class ScoreWishes(MachineWishes):
    """What may be asked of scoring."""

    source: str | None = wish("text that was translated, a sentence a line", "what to score")
    target: str | None = wish("its translation, line by line", "what to score")
    text: str | None = wish("one text, scored line by line", "what to score")
