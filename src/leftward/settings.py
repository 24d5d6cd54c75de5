"""A run in words: frozen dataclasses that say what a model is made of.

Nothing here knows torch, so that help texts and settings files cost nothing to read. A settings table (from
TOML or from Python) becomes a dataclass through `from_table`, which refuses an unknown key and names the
nearest known one.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar

from leftward.errors import SettingsError

Norm = Literal["layer", "rms"]
NormPlace = Literal["before", "after"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh", "gated_silu", "gated_gelu"]
Tie = Literal["none", "source-target", "target-output", "all"]

Settings = TypeVar("Settings")


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


def from_table(kind: type[Settings], table: Mapping[str, Any], *, where: str = "settings") -> Settings:
    """Make a settings dataclass from a plain table, refusing what it does not know.

    >>> from_table(Stack, {"layers": 2, "heads": 4}).layers
    2
    >>> from_table(Stack, {"layer": 2})
    Traceback (most recent call last):
    ...
    leftward.errors.SettingsError: there is no setting "layer"
      where: settings
      to do: did you mean "layers"?
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise SettingsError(
                f'there is no setting "{key}"',
                where=where,
                hint=f'did you mean "{nearest[0]}"?' if nearest else f"known are: {', '.join(sorted(known))}",
            )
        values[key] = _convert(hints[key], value, f"{where}.{key}")
    try:
        return kind(**values)
    except TypeError:
        missing = [
            field.name
            for field in fields(kind)  # type: ignore[arg-type]
            if field.name not in values and _is_required(field)  # type: ignore[arg-type]
        ]
        raise SettingsError(f"missing: {', '.join(missing)}", where=where, hint="give each of them a value") from None


def to_table(settings: Any) -> dict[str, Any]:
    """A settings dataclass as a plain table that `from_table` reads back; what is None is left out.

    >>> to_table(Stack(layers=1))["layers"]
    1
    """
    table: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None:
            continue
        table[field.name] = (
            to_table(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        )
    return table


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as its field wants it; anything else is an error that says what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_to_any(arguments, hint, value, where)
    if origin is Literal:
        return _convert_to_choice(arguments, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(arguments[0], one, where) for one in value)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return from_table(hint, value, where=where)
    if isinstance(hint, type) and isinstance(value, bool) == (hint is bool):
        # A bool is an int to Python, but "layers = true" is a mistake; a whole number will do for any number.
        if isinstance(value, hint):
            return value
        if hint is float and isinstance(value, int):
            return float(value)
    raise _expected(hint, value, where)


def _convert_to_any(options: tuple[Any, ...], hint: Any, value: Any, where: str) -> Any:
    for option in options:
        try:
            return _convert(option, value, where)
        except SettingsError:
            if is_dataclass(option) and isinstance(value, Mapping):
                raise
    raise _expected(hint, value, where)


def _convert_to_choice(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in options:
        return value
    nearest = difflib.get_close_matches(str(value), [str(one) for one in options], n=1)
    raise SettingsError(
        f"{value!r} is none of {', '.join(map(repr, options))}",
        where=where,
        hint=f'did you mean "{nearest[0]}"?' if nearest else "take one of them",
    )


def _expected(hint: Any, value: Any, where: str) -> SettingsError:
    wanted = getattr(hint, "__name__", str(hint))
    return SettingsError(f"{value!r} is not a value of kind {wanted}", where=where, hint=f"give a {wanted}")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise SettingsError(f"{name} is {value}", where=name, hint=f"it must be at least {least}")
