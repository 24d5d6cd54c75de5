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
from leftward.wishes import EvaluateWishes, MachineWishes, ScoreWishes, TrainWishes, WritingWishes

if TYPE_CHECKING:
    from leftward.api import Decoder, Written
    from leftward.training.preparation import Prepared
    from leftward.training.session import Report, Trained

INTERRUPTED = 130
OURS_TO_MEND = 70

USAGE = """\
leftward trains, runs, proves and shows Transformer decoders.

  leftward train --source a.en --target a.de --out model    a translator, from two files that match line by line
  leftward train --text book.txt --out model                a model that continues text
  leftward translate model file.en                          a translation for every line
  leftward generate model "Once upon a time"                a continuation, as it is written
  leftward evaluate model --source t.en --target t.de       BLEU, chrF, loss
  leftward score model --source t.en --target t.de          how likely each line is, piece by piece
  leftward audit model                                      does anything read the future?
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
    verbs: dict[str, Callable[[list[str], Console], int]] = {
        "train": _train,
        "translate": _translate,
        "generate": _generate,
        "evaluate": _evaluate,
        "score": _score,
        "audit": _audit,
        "doctor": _doctor,
    }
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
    _conclude(trained, console, reads_source=prepared.kit.run.data.is_pair)
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


def _conclude(trained: Trained, console: Console, *, reads_source: bool) -> None:
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
    verb = "translate" if reads_source else "generate"
    console.note(f"next: leftward {verb} {shlex.quote(str(trained.folder))}")


def _translate(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward translate",
        description="Translate every line of a file, or of standard input: one line in, one line out.",
        epilog="example: leftward translate en-de test.en --strategy beam > test.out",
    )
    parser.add_argument("folder", metavar="DIR", help="a model folder")
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="text, or - for standard input")
    add_flags(parser, WritingWishes)
    parser.add_argument("--json", action="store_true", help="an object a line, with scores")
    given = _parse(parser, arguments)
    wishes = wishes_of(WritingWishes, given)
    strategy = wishes.choose_strategy("greedy")
    from leftward.text.incoming import portions

    waiting = portions(given.file)
    from leftward.api import one_line

    decoder = _load(given.folder, wishes, console)
    if wishes.to is None and decoder.tags:
        console.note(f"translating to {decoder.tags[0]}; others: --to {'|'.join(decoder.tags[1:])}")
    if given.file == "-" and sys.stdin.isatty():
        console.note("type a line to translate; Ctrl-D ends")
    row = cut = joined = 0
    for lines in waiting:
        written = decoder.translate_in_full(
            lines,
            strategy=strategy,
            to=wishes.to,
            max_new=wishes.max_new,
            exact=bool(wishes.exact),
            totals=given.json,
            first_row=row,
        )
        for each in written:
            if each.is_cut:
                cut += 1
                console.note(f"line {each.row + 1} is longer than the model reads, and was cut")
            best = each.outputs[0].text if each.outputs else ""
            joined += one_line(best) != best
            _say(_as_object(each, "source") if given.json else one_line(best))
        row += len(lines)
        sys.stdout.flush()
    told = [f"{cut:,} lines cut" if cut else "", f"{joined:,} line ends written as spaces" if joined else ""]
    if any(told):
        console.note("; ".join(part for part in told if part))
    return 0


def _generate(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward generate",
        description="Continue a text, as it is written.",
        epilog='example: leftward generate model "Once upon a time" --temperature 0.8',
    )
    parser.add_argument("folder", metavar="DIR", help="a model folder")
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", default="", help="the beginning, or - for standard input"
    )
    add_flags(parser, WritingWishes)
    parser.add_argument("--json", action="store_true", help="one object, with scores")
    given = _parse(parser, arguments)
    wishes = wishes_of(WritingWishes, given)
    strategy = wishes.choose_strategy("sample")
    if wishes.to is not None:
        raise SettingsError("a model that continues text has no target language", where="--to", hint="leave it out")
    prompt = given.prompt
    if prompt == "-":
        from leftward.text.incoming import read_all

        prompt = read_all()
    decoder = _load(given.folder, wishes, console)
    most, exact = wishes.max_new or 200, bool(wishes.exact)
    if given.json:
        _say(_as_object(decoder.generate_in_full([prompt], strategy=strategy, max_new=most, exact=exact)[0], "prompt"))
    elif wishes.n_best is not None:
        for each in decoder.generate_in_full([prompt], strategy=strategy, max_new=most, exact=exact)[0].outputs:
            _say(each.text)
    else:
        for text in decoder.stream(prompt, strategy=strategy, max_new=most, exact=exact):
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n")
    return 0


def _evaluate(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward evaluate",
        description="Say how good a model is on text it was not trained on.",
        epilog="example: leftward evaluate en-de --source test.en --target test.de --strategy beam",
    )
    parser.add_argument("folder", metavar="DIR", help="a model folder")
    add_flags(parser, EvaluateWishes)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    given = _parse(parser, arguments)
    wishes = wishes_of(EvaluateWishes, given)
    strategy = wishes.choose_strategy("greedy")
    from leftward.api import evaluate

    del console
    found = asdict(
        evaluate(
            given.folder,
            source=wishes.source,
            target=wishes.target,
            text=wishes.text,
            strategy=strategy,
            to=wishes.to,
            max_new=wishes.max_new,
            exact=bool(wishes.exact),
            device=wishes.device,
            threads=wishes.threads,
        )
    )
    if given.json:
        _say(json.dumps(found))
    else:
        for name, value in found.items():
            if value is not None:
                _say(f"{name:<11} {value:.4f}" if isinstance(value, float) else f"{name:<11} {value}")
    return 0


def _score(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward score",
        description="Say how likely a model finds each line, piece by piece.",
        epilog="example: leftward score en-de --source test.en --target test.de --json",
    )
    parser.add_argument("folder", metavar="DIR", help="a model folder")
    add_flags(parser, ScoreWishes)
    parser.add_argument("--json", action="store_true", help="an object a line")
    given = _parse(parser, arguments)
    wishes = wishes_of(ScoreWishes, given)
    from leftward.api import score

    del console
    files = {"source": wishes.source, "target": wishes.target, "text": wishes.text}
    for each in score(given.folder, **files, device=wishes.device, threads=wishes.threads):
        _say(json.dumps(asdict(each), ensure_ascii=False) if given.json else f"{each.row + 1}\t{each.total:.4f}")
    return 0


def _audit(arguments: list[str], console: Console) -> int:
    parser = Parser(
        prog="leftward audit",
        description="Prove that a model reads nothing it must predict, and gives one result whichever way it is run.",
        epilog="example: leftward audit en-de && echo sound",
    )
    parser.add_argument("folder", metavar="DIR", help="a model folder")
    add_flags(parser, MachineWishes)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    given = _parse(parser, arguments)
    from leftward.api import audit

    findings = audit(given.folder)
    if given.json:
        _say(json.dumps([{**asdict(each), "holds": each.holds} for each in findings]))
    else:
        for each in findings:
            _say(f"{'holds ' if each.holds else 'BROKEN'}  {each.law}: {each.worst:.3g}, allowed {each.allowed:.3g}")
    broken = [each for each in findings if not each.holds]
    if broken:
        from leftward.errors import LeakFound

        hint = "do not trust this model's losses, nor its texts"
        raise LeakFound(f"broken: {broken[0].law}", where=broken[0].where, hint=hint)
    console.note(f"all {len(findings)} laws hold")
    return 0


def _load(folder: str, wishes: MachineWishes, console: Console) -> Decoder:
    from leftward.api import load

    if wishes.threads is not None and wishes.threads < 1:
        raise SettingsError(f"threads is {wishes.threads}", where="--threads", hint="it must be at least 1")
    decoder = load(folder, device=wishes.device, threads=wishes.threads)
    if decoder.folder_note:
        console.note(f"{folder}: {decoder.folder_note}")
    return decoder


def _as_object(written: Written, given: str) -> str:
    outputs = [each._asdict() for each in written.outputs]
    return json.dumps({"row": written.row, given: written.given, "outputs": outputs}, ensure_ascii=False)


def _say(text: str) -> None:
    print(text)


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
