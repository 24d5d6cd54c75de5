"""Flags of the command line, made from the fields of a wishes dataclass; every mistake is one of our own errors."""

from __future__ import annotations

import argparse
import difflib
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from typing import Any, Literal, NoReturn, TypeVar

from leftward.errors import SettingsError

Wishes = TypeVar("Wishes")


class Parser(argparse.ArgumentParser):
    """An argument parser that raises where others print and leave."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with which flag."""
        match = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        where, what = (match[1], match[2]) if match else (self.prog, message)
        choice = re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", what)
        if choice:
            options = [option.strip().strip("'") for option in choice[2].split(",")]
            raise SettingsError(f"{choice[1]!r} is not possible here", where=where, hint=_suggest(choice[1], options))
        raise SettingsError(what, where=where, hint=f"see {self.prog} --help")


def add_flags(parser: Parser, kind: type[Any]) -> None:
    """A flag for each field of a wishes dataclass, in its group."""
    hints = typing.get_type_hints(kind)
    groups: dict[str, Any] = {}
    for entry in fields(kind):
        group = entry.metadata["group"]
        groups.setdefault(group, parser.add_argument_group(group))
        _add_flag(groups[group], entry, _without_none(hints[entry.name]))


def parse(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse, and name the nearest flag for an unknown one."""
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].split("=")[0]
        if not name.startswith("-"):
            what = f"{unknown[0]!r} is one argument too many"
            raise SettingsError(what, where=parser.prog, hint=f"see {parser.prog} --help")
        known = [option for action in parser._actions for option in action.option_strings]
        raise SettingsError(f"there is no flag {name}", where=parser.prog, hint=_suggest(name, known))
    return given


def wishes_of(kind: type[Wishes], given: argparse.Namespace) -> Wishes:
    """The wishes dataclass from parsed arguments."""
    return kind(**{entry.name: getattr(given, entry.name) for entry in fields(kind)})  # type: ignore[arg-type]


def _suggest(name: str, known: Sequence[str]) -> str:
    plain = {option.lstrip("-"): option for option in known}  # dashes would make all flags alike
    nearest = difflib.get_close_matches(name.lstrip("-"), plain, n=1, cutoff=0.5)
    return f"did you mean {plain[nearest[0]]}?" if nearest else f"take one of {', '.join(known)}"


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def _add_flag(group: Any, entry: Field[Any], hint: Any) -> None:
    flag, text = f"--{entry.name.replace('_', '-')}", entry.metadata["help"]
    if hint is bool:
        group.add_argument(flag, action="store_true", default=None, help=text)
    elif typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        group.add_argument(flag, choices=choices, metavar="|".join(choices), help=text)
    else:
        group.add_argument(flag, type=_KINDS[hint], metavar=_LETTERS[hint], help=text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


_KINDS: dict[Any, Callable[[str], Any]] = {int: _whole, float: _number, str: str}
_LETTERS = {int: "N", float: "X", str: "NAME"}
