"""Settings dataclasses to plain tables and TOML, and back; what is not known is refused with the nearest known name."""

from __future__ import annotations

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from leftward.errors import SettingsError

Settings = TypeVar("Settings")


def from_table(kind: type[Settings], table: Mapping[str, Any], *, where: str = "settings") -> Settings:
    """Make a settings dataclass from a plain table, refusing what it does not know.

    >>> from leftward.settings import Stack
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

    >>> from leftward.settings import Stack
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


def to_toml(settings: Any) -> str:
    """A settings dataclass as TOML.

    >>> from leftward.settings import Model, Stack
    >>> settings = Model(vocabulary=9, width=8, decoder=Stack(heads=2))
    >>> from_toml(Model, to_toml(settings)) == settings
    True
    """
    return "\n".join(_lines(to_table(settings), "")) + "\n"


def from_toml(kind: type[Settings], text: str, *, where: str = "settings.toml") -> Settings:
    """A settings dataclass read from TOML."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"this is no TOML: {error}", where=where, hint="mend the line, or take an intact copy"
        ) from None
    return from_table(kind, table, where=where)


def _lines(table: Mapping[str, Any], name: str) -> list[str]:
    """Plain values first, as TOML wants it, then a section for each table in the table."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            path = f"{name}.{key}" if name else key
            lines += [*([""] if lines else []), f"[{path}]", *_lines(value, path)]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # JSON's way to write strings, integers and truth is TOML's too, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
