"""The command line: parses and prints, nothing more.

torch is imported by the verbs that need it, so that help and mistakes answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leftward.console import Console, duration
from leftward.disk import divert
from leftward.errors import LeftwardError, SettingsError
from leftward.flags import Parser, add_flags, parse, wishes_of
from leftward.wishes import TrainWishes

if TYPE_CHECKING:
    from leftward.training.preparation import Prepared
    from leftward.training.session import Report, Trained

INTERRUPTED = 130
OURS_TO_MEND = 70

USAGE = """\
leftward trains, runs, proves and shows Transformer decoders.

  leftward train --source a.en --target a.de --out model    a translator, from two files that match line by line
  leftward train --text book.txt --out model                a model that continues text
  leftward doctor                                           what this machine has

Every verb explains itself: leftward train --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(sys.stderr, as_json="--json" in given)
    try:
        return _dispatch(given, console)
    except LeftwardError as error:
        if os.environ.get("LEFTWARD_DEBUG"):
            raise
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        console.note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain again when it closes the stream.
        divert(sys.stdout.fileno())
        return 0
    except MemoryError:
        console.error(_out_of_memory("while working"))
        return 3
    except Exception as error:
        if os.environ.get("LEFTWARD_DEBUG"):
            raise
        if _is_out_of_memory(error):
            console.error(_out_of_memory(str(error).split("\n")[0]))
            return 3
        ours = LeftwardError(
            f"this should not happen: {type(error).__name__}: {error}",
            where="Leftward itself",
            hint="run it again with LEFTWARD_DEBUG=1 and report what it prints",
        )
        console.error(ours)
        return OURS_TO_MEND


def _dispatch(given: list[str], console: Console) -> int:
    verbs: dict[str, Callable[[list[str], Console], int]] = {"train": _train, "doctor": _doctor}
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if given[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"leftward {version('leftward')}")
        return 0
    if given[0] not in verbs:
        import difflib

        nearest = difflib.get_close_matches(given[0], verbs, n=1, cutoff=0.5)
        hint = f"did you mean leftward {nearest[0]}?" if nearest else f"take one of {', '.join(verbs)}"
        raise SettingsError(f"there is no verb {given[0]!r}", where="leftward", hint=hint)
    with contextlib.suppress(_HelpShown):
        return verbs[given[0]](given[1:], console)
    return 0


class _HelpShown(Exception):
    """Help was asked for and printed."""


def _parse(parser: Parser, arguments: list[str]) -> Any:
    try:
        return parse(parser, arguments)
    except SystemExit:  # argparse leaves after printing its help, and only then
        raise _HelpShown from None


def _train(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward train",
        description="Train a model from text files. Whatever is not said is chosen from the data and the machine.",
        epilog="example: leftward train --source train.en --target train.de --out en-de",
    )
    add_flags(parser, TrainWishes)
    parser.add_argument("--show-settings", action="store_true", help="say what would be done and why, and leave")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = _parse(parser, arguments)
    wishes = wishes_of(TrainWishes, given)
    from leftward.training.preparation import prepare
    from leftward.training.session import train

    prepared = prepare(wishes)
    for note in prepared.notes:
        console.note(note)
    if given.show_settings:
        _show_settings(prepared, as_json=given.json)
        return 0
    for line in prepared.kit.run.chosen if prepared.checkpoint is None else ():
        console.note(f"chosen  {line}")
    with _one_interrupt() as asked_to_stop:
        trained = train(prepared, report=_Watcher(console).see, should_stop=asked_to_stop)
    _conclude(trained, console)
    if given.json:
        print(json.dumps({**asdict(trained), "folder": str(trained.folder)}))
    return 0 if trained.is_done else INTERRUPTED


def _show_settings(prepared: Prepared, *, as_json: bool) -> None:
    from leftward.tables import to_table, to_toml

    run = prepared.kit.run
    if as_json:
        print(json.dumps({"settings": to_table(run), "origins": dict(prepared.origins)}, ensure_ascii=False))
        return
    print(to_toml(run), end="")
    print("\n# where each came from; what is not listed is a plain default")
    for name, origin in prepared.origins.items():
        print(f"# {name}: {origin}")


@contextlib.contextmanager
def _one_interrupt() -> Iterator[Callable[[], bool]]:
    """Take the first Ctrl-C as a wish to stop after this step; a second one stops at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        del frame
        asked = True
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watcher:
    """Turns events into the line that moves."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._loss = self._validation = ""
        self._begun: tuple[int, float, int] | None = None
        self._rate = 0.0

    def see(self, report: Report) -> None:
        """Show where the run is."""
        from leftward.training.loop import Learned, Logged, Validated

        progress, event = report.progress, report.event
        if self._begun is None:
            self._begun = (progress.step, progress.seconds, progress.target_tokens)
        if isinstance(event, Logged):
            self._loss = f"loss {event.loss:.3f}"
        elif isinstance(event, Validated):
            mark = " (best)" if event.is_best else ""
            self._validation = f"validation {event.loss:.3f}{mark}"
        if not isinstance(event, Learned):
            return
        step, seconds, tokens = self._begun
        spent = progress.seconds - seconds
        parts = [f"step {progress.step:,}/{report.training.steps:,}"]
        if spent > 0 and progress.step > step:
            parts.append(f"{(progress.target_tokens - tokens) / spent:,.0f} tokens/s")
            left = (report.training.steps - progress.step) * spent / (progress.step - step)
            # The first steps say little about the others.
            parts += [f"{duration(left)} left"] if progress.step - step >= 5 else []
        if progress.skipped:
            parts.append(f"{progress.skipped} steps skipped")
        parts += [part for part in (self._loss, self._validation) if part]
        self._console.progress("  ".join(parts), is_last=progress.step == report.training.steps)


def _conclude(trained: Trained, console: Console) -> None:
    counts = trained.counts
    told = [
        f"{counts.samples:,} samples read" if counts.samples else "",
        f"{counts.empty:,} left out because a side is empty" if counts.empty else "",
        f"{counts.long:,} left out because they are longer than the context" if counts.long else "",
        f"{counts.split:,} documents cut into rows" if counts.split else "",
        f"{counts.unknown:,} characters unknown" if counts.unknown else "",
        f"{trained.skipped:,} steps skipped" if trained.skipped else "",
    ]
    console.note("; ".join(part for part in told if part))
    if not trained.is_done:
        console.note(f"stopped after step {trained.step:,} of {trained.steps:,}; the state is saved")
        console.note(f"go on with: leftward train --resume --out {shlex.quote(str(trained.folder))}")
        return
    best = (
        "" if trained.best_loss is None else f", validation loss {trained.best_loss:.4f} at step {trained.best_step:,}"
    )
    console.note(f"saved {trained.folder}: {trained.step:,} steps in {duration(trained.seconds)}{best}")


def _doctor(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward doctor",
        description="Say what this machine has, and what would stand in the way.",
        epilog="example: leftward doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    given = _parse(parser, arguments)
    del console
    from leftward.machine import examine

    found = examine()
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<12} {value}")
    return 0


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _out_of_memory(where: str) -> LeftwardError:
    from leftward.errors import DeviceError

    hint = "take a smaller --batch-tokens, --context or --size"
    return DeviceError("the memory of this machine does not suffice", where=where, hint=hint)


if __name__ == "__main__":
    sys.exit(main())
