"""What a person may ask for: one field for each flag, None where nothing was said.

The command line makes its flags of these fields, and the Python functions take the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from leftward.errors import SettingsError
from leftward.settings import DocumentsBy, PiecesKind, Precision

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
