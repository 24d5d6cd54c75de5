"""A run in words: frozen dataclasses that say what a model is made of, what it read and how it is trained.

Nothing here knows torch, so that help texts and settings files cost nothing to read; `tables` turns these into
TOML and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from leftward.errors import SettingsError

Norm = Literal["layer", "rms"]
NormPlace = Literal["before", "after"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh", "gated_silu", "gated_gelu"]
Tie = Literal["none", "source-target", "target-output", "all"]
PiecesKind = Literal["bpe", "characters"]
DocumentsBy = Literal["none", "line", "blank"]
Schedule = Literal["inverse-root", "cosine"]
Precision = Literal["float32", "medium", "bfloat16"]


@dataclass(frozen=True)
class Stack:
    """One tower of layers: the encoder's or the decoder's.

    `window` is the number of keys a query sees, itself included: one number for all layers, or one for each
    layer with 0 for "no window".

    >>> Stack(layers=2, heads=4, window=(0, 8)).window_of(1)
    8
    """

    layers: int = 6
    heads: int = 8
    feed_forward: int = 2048
    key_heads: int = 0  # 0: as many as heads
    head_size: int = 0  # 0: width / heads
    window: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "feed_forward"):
            _at_least(1, name, getattr(self, name))
        for name in ("key_heads", "head_size"):
            _at_least(0, name, getattr(self, name))
        if self.heads % (self.key_heads or self.heads):
            raise SettingsError(
                f"{self.heads} heads cannot share {self.key_heads} key heads evenly",
                where="key_heads",
                hint=f"take a divisor of {self.heads}",
            )
        if isinstance(self.window, tuple) and len(self.window) != self.layers:
            raise SettingsError(
                f"{len(self.window)} windows for {self.layers} layers",
                where="window",
                hint="give one number for all layers, or one for each (0 for no window)",
            )
        for window in self.window if isinstance(self.window, tuple) else (self.window,):
            _at_least(0, "window", window)

    def window_of(self, layer: int) -> int | None:
        """The window of one layer, None where it sees its whole row."""
        return (self.window[layer] if isinstance(self.window, tuple) else self.window) or None


@dataclass(frozen=True)
class Model:
    """What a model is made of. Without an encoder it is decoder-only.

    >>> Model(vocabulary=100, width=64, decoder=Stack(layers=2, heads=4, feed_forward=128)).has_encoder
    False
    """

    vocabulary: int
    decoder: Stack
    encoder: Stack | None = None
    source_vocabulary: int = 0  # 0: the same as vocabulary
    width: int = 512
    context: int = 1024  # the longest row, and the number of learned positions
    dropout: float = 0.0

    positions: Positions = "sinusoidal"
    position_offset: int = 0  # added to every position before it is looked up
    rotary_base: float = 10_000.0
    relative_buckets: int = 32
    relative_distance: int = 128

    norm: Norm = "layer"
    norm_place: NormPlace = "after"
    norm_epsilon: float = 1e-5
    norm_bias: bool = True
    final_norm: bool | None = None  # None: where norms come before, and not where they come after
    embedding_norm: bool = False

    activation: Activation = "relu"
    attention_bias: bool = True
    feed_forward_bias: bool = True
    output_bias: bool = False

    attention_scale: float = 0.0  # 0: one over the root of the head size
    embedding_scale: float = 0.0  # 0: the root of the width
    logit_scale: float = 1.0
    tie: Tie = "all"

    def __post_init__(self) -> None:
        _at_least(2, "vocabulary", self.vocabulary)
        _at_least(0, "source_vocabulary", self.source_vocabulary)
        for name in ("width", "context", "relative_buckets", "relative_distance"):
            _at_least(1, name, getattr(self, name))
        _at_least(0, "position_offset", self.position_offset)
        if not 0 <= self.dropout < 1:
            raise SettingsError(
                f"a dropout of {self.dropout} cannot be", where="dropout", hint="give a share from 0 up to 1"
            )
        for name in ("norm_epsilon", "rotary_base"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be positive", where=name, hint="leave it at its default")
        for side, stack in (("decoder", self.decoder), ("encoder", self.encoder)):
            if stack is not None:
                self._check_stack(side, stack)
        if self.tie in ("source-target", "all") and self.encoder and self.source_size != self.vocabulary:
            raise SettingsError(
                f"a vocabulary of {self.source_size} and one of {self.vocabulary} cannot share one embedding",
                where="tie",
                hint='set tie to "target-output" or "none"',
            )
        if self.tie == "source-target" and not self.encoder:
            raise SettingsError(
                "a decoder-only model has no source to tie",
                where="tie",
                hint='set tie to "target-output" or "none"',
            )

    def _check_stack(self, side: str, stack: Stack) -> None:
        # Half the buckets of a direction tell single distances apart, the others grow up to the far distance.
        single = self.relative_buckets // (4 if side == "encoder" else 2)
        if self.positions == "relative" and not 0 < single < self.relative_distance:
            raise SettingsError(
                f"{self.relative_buckets} buckets cannot grow up to a distance of {self.relative_distance}",
                where="relative_buckets",
                hint="take 4 or more, and a distance beyond half of them",
            )
        if not stack.head_size and self.width % stack.heads:
            raise SettingsError(
                f"a width of {self.width} does not divide into {stack.heads} heads",
                where=f"{side}.heads",
                hint="change one of them, or give head_size",
            )
        if self.positions == "rotary" and self.head_size(stack) % 2:
            raise SettingsError(
                f"rotary positions turn pairs of numbers; of {self.head_size(stack)} in a head one is left over",
                where=f"{side}.head_size",
                hint="take an even head size",
            )

    @property
    def has_encoder(self) -> bool:
        """Whether there is a source to read."""
        return self.encoder is not None

    @property
    def source_size(self) -> int:
        """The number of ids on the source side."""
        return self.source_vocabulary or self.vocabulary

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands behind the last layer of each stack."""
        return self.norm_place == "before" if self.final_norm is None else self.final_norm

    def head_size(self, stack: Stack) -> int:
        """The width of one head of this stack."""
        return stack.head_size or self.width // stack.heads


@dataclass(frozen=True)
class ControlIds:
    """The ids of one tokenizer that no text can produce; they are not part of the tokenizer's own file."""

    start: int
    end: int
    unknown: int | None = None
    tags: tuple[str, ...] = ()  # target languages, whose ids follow one by one after the end

    @property
    def tag_ids(self) -> tuple[int, ...]:
        """The id of each tag."""
        return tuple(self.end + 1 + place for place in range(len(self.tags)))


@dataclass(frozen=True)
class Pieces:
    """How text becomes ids. With one tokenizer for both sides `source` is left out."""

    kind: PiecesKind
    target: ControlIds
    source: ControlIds | None = None


@dataclass(frozen=True)
class Data:
    """The files a model was trained on: two that match line by line, or one text."""

    source: str = ""
    target: str = ""
    text: str = ""
    documents: DocumentsBy = "none"
    validation_source: str = ""
    validation_target: str = ""
    validation_text: str = ""
    validation_share: float = 0.0  # split off from the training files where there are no files for it

    @property
    def is_pair(self) -> bool:
        """Whether there are two files."""
        return bool(self.source)


@dataclass(frozen=True)
class Training:
    """How weights are found."""

    steps: int
    batch_tokens: int  # predicted target tokens of one optimizer step, at most
    learning_rate: float
    warm_up: int
    validate_every: int
    save_every: int
    log_every: int = 10
    schedule: Schedule = "inverse-root"
    smoothing: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.98)
    epsilon: float = 1e-9
    clip: float = 1.0  # the largest norm of a gradient
    tokens_at_once: int = 16_384  # a step of more tokens is accumulated from several passes
    precision: Precision = "float32"
    seed: int = 1
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "validate_every", "save_every", "log_every", "tokens_at_once", "threads"):
            _at_least(1, name, getattr(self, name))
        for name in ("warm_up", "seed"):
            _at_least(0, name, getattr(self, name))
        for name in ("learning_rate", "epsilon", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingsError(f"{name} is {getattr(self, name)}", where=name, hint="it must be above 0")
        if not 0 <= self.smoothing < 1:
            raise SettingsError(f"smoothing is {self.smoothing}", where="smoothing", hint="give a share from 0 up to 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise SettingsError(f"betas are {self.betas}", where="betas", hint="give two numbers from 0 up to 1")
        if not 0 <= self.weight_decay < float("inf"):
            raise SettingsError(f"weight_decay is {self.weight_decay}", where="weight_decay", hint="give 0 or more")


@dataclass(frozen=True)
class Greedy:
    """Always the likeliest next token."""


@dataclass(frozen=True)
class Beam:
    """Keep the `size` likeliest beginnings at each step, and at the end take the best by score.

    The score of an output is the sum of its tokens' log-probabilities divided by its length to the power of
    `length_penalty`; the end token counts in both.
    """

    size: int = 5
    length_penalty: float = 1.0
    n_best: int = 1

    def __post_init__(self) -> None:
        _at_least(1, "beam_size", self.size)
        _at_least(1, "n_best", self.n_best)
        if self.n_best > self.size:
            raise SettingsError(
                f"a beam of {self.size} has no {self.n_best} best", where="n_best", hint="take a larger beam"
            )
        if not 0 <= self.length_penalty < float("inf"):
            raise SettingsError(
                f"a length penalty of {self.length_penalty}", where="length_penalty", hint="give 0 or more"
            )


@dataclass(frozen=True)
class Sample:
    """Draw each token by its probability, after a temperature and without the unlikely ones.

    A draw depends on the seed, the row's number in the input, the sample's number and the position alone: the same row
    and seed give the same text in any batch. `top_k` of 0 and `top_p` of 1 leave nothing out.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    n_best: int = 1  # how many texts are drawn for each row

    def __post_init__(self) -> None:
        _at_least(0, "top_k", self.top_k)
        _at_least(0, "seed", self.seed)
        _at_least(1, "n_best", self.n_best)
        if not 0 < self.temperature < float("inf"):
            raise SettingsError(
                f"a temperature of {self.temperature}",
                where="temperature",
                hint="give a number above 0; 1 changes nothing",
            )
        if self.seed >= 2**63:
            raise SettingsError(f"a seed of {self.seed}", where="seed", hint="take one of at most 18 digits")
        if not 0 < self.top_p <= 1:
            raise SettingsError(f"a top-p of {self.top_p}", where="top_p", hint="give a share above 0, up to 1")


Strategy = Greedy | Beam | Sample


@dataclass(frozen=True)
class Run:
    """All of it, as it stands in a model folder's `settings.toml`.

    `chosen` says for each setting that nobody gave why it is what it is.
    """

    model: Model
    pieces: Pieces
    data: Data = field(default_factory=Data)
    training: Training | None = None
    chosen: tuple[str, ...] = ()


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise SettingsError(f"{name} is {value}", where=name, hint=f"it must be at least {least}")
