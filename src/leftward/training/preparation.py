"""Getting a run ready, anew or to go on: read the files, make or read the tokenizers, settle every setting.

Nothing is written here, so a run that is refused leaves no trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leftward import checkpoint
from leftward.checkpoint import Kit
from leftward.errors import CheckpointError, LeftwardError, SettingsError, TextError
from leftward.machine import count_cores, is_medium_as_exact_as_float32, require_memory, settle_device
from leftward.settings import ControlIds, Data, Pieces, Run, Training
from leftward.text.corpus import Documents, Lines, require_pairs
from leftward.text.order import hold_out
from leftward.text.samples import Articles, Book, Pairs, Samples, split_end
from leftward.text.stream import Stream, once
from leftward.text.tokenizer import Tokenizer
from leftward.text.vocabulary import train_bpe, train_characters
from leftward.training.plan import (
    SIZES,
    Choices,
    Facts,
    choose_held_out,
    choose_vocabulary,
    count_matrix_weights,
    make_run,
)
from leftward.wishes import DEFAULT_FOLDER, TrainWishes


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin or to go on."""

    folder: Path
    kit: Kit
    origins: Mapping[str, str]  # where each setting came from
    training_samples: Samples
    validation_samples: Samples | None
    files: Mapping[str, tuple[int, str]]  # size and SHA-256 of every file read, by its part in the run
    is_new: bool = True
    checkpoint: Path | None = None  # to go on from
    notes: tuple[str, ...] = ()

    @property
    def training(self) -> Training:
        """The training settings."""
        if self.kit.run.training is None:
            raise CheckpointError(
                "this model was not trained here", where=str(self.folder), hint="train one from text files"
            )
        return self.kit.run.training


def prepare(wishes: TrainWishes) -> Prepared:
    """Read the files, train or read the tokenizers, settle every setting. Writes nothing."""
    folder = Path(wishes.out or DEFAULT_FOLDER)
    # os.path answers no where Path would fail, as under a folder that may not be read.
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise SettingsError("the output is a file", where=f"--out {folder}", hint="name a folder that is not there yet")
    if wishes.resume and checkpoint.holds_a_run(folder):
        return _prepare_to_go_on(wishes, folder)
    if not wishes.resume:
        refuse_other_run(folder)
    prepared = _prepare_anew(wishes, folder)
    if wishes.resume:
        return replace(prepared, is_new=True, notes=(f"{folder} holds no run: starting from the beginning",))
    return prepared


def refuse_other_run(folder: Path) -> None:
    """A folder that holds a run is gone on with, or left alone."""
    if checkpoint.holds_a_run(folder):
        raise SettingsError(
            "the folder holds another run",
            where=f"--out {folder}",
            hint="name another folder, or go on with that run: --resume",
        )


def _prepare_anew(wishes: TrainWishes, folder: Path) -> Prepared:
    device = settle_device(wishes.device)
    choices = Choices()
    data = _data_of(wishes)
    _require_possible(wishes, data, device)
    opened = _Opened.read(data)
    held_out = 0
    if not opened.has_validation:
        if data.is_pair or data.documents != "none":
            held_out = choose_held_out(wishes.validation_share, opened.rows, choices)
            data = replace(data, validation_share=held_out / opened.rows)
        else:
            share = choices.take(
                "validation_share",
                wishes.validation_share,
                lambda: (0.1, "the last tenth is split off, because no validation file is given"),
            )
            if not 0 < share < 1:
                raise SettingsError(
                    f"a share of {share:g} cannot be split off",
                    where="--validation-share",
                    hint="give one between 0 and 1",
                )
            data = replace(data, validation_share=share)
    elif wishes.validation_share is not None:
        raise SettingsError(
            "validation files and a share to split off contradict each other",
            where="--validation-share",
            hint="leave one of them out",
        )
    seed = 1 if wishes.seed is None else wishes.seed
    source, target, kind = _train_tokenizers(wishes, opened, choices)
    pieces = Pieces(
        kind, checkpoint.ids_of(target.controls), None if source is target else checkpoint.ids_of(source.controls)
    )
    facts = Facts(
        rows=opened.rows,
        target_tokens=opened.count_target_tokens(target),
        vocabulary=target.size,
        source_vocabulary=0 if source is target else source.size,
        cores=count_cores(),
        device=device,
        medium_is_float32=device == "cpu" and wishes.precision is None and is_medium_as_exact_as_float32(),
    )
    run = make_run(wishes, data, pieces, facts, choices)
    kit = Kit(run, source, target)
    with _in_file(data.target or data.text):
        training, validation = opened.samples(kit, seed)
    _require_rows(run, training, validation)
    return Prepared(folder, kit, choices.origins, training, validation, opened.fingerprints)


def _require_possible(wishes: TrainWishes, data: Data, device: str) -> None:
    """Complain of impossible settings now, and not when minutes have gone into a tokenizer."""
    facts = Facts(1, 1, vocabulary=2, source_vocabulary=0, cores=1, device=device, medium_is_float32=False)
    model = make_run(wishes, data, Pieces("bpe", ControlIds(0, 1)), facts, Choices()).model
    require_memory(16 * count_matrix_weights(model), device)  # in float32: weight, gradient and two moments


def _require_rows(run: Run, training: Samples, validation: Samples | None) -> None:
    """Complain now of data that gives nothing to learn or to validate, and not when the folder is made."""
    if run.training is not None:
        with _in_file(run.data.target or run.data.text):
            next(Stream([training], budget=run.training.batch_tokens, seed=run.training.seed).batches())
    if validation is not None and next(once(validation, validation.context), None) is None:
        raise TextError(
            "no row is left to validate on: all are blank or longer than the context",
            where=run.data.validation_target or run.data.validation_text or run.data.target or run.data.text,
            hint="look at the files, or allow longer rows with a larger context",
        )


@contextmanager
def _in_file(path: str) -> Iterator[None]:
    """Give an error that names no place the file it comes from."""
    try:
        yield
    except LeftwardError as error:
        error.where = error.where or path
        raise


def _data_of(wishes: TrainWishes) -> Data:
    pair = (wishes.source, wishes.target)
    if wishes.text is not None and any(pair):
        what = "--text and a pair of files contradict each other"
        raise SettingsError(what, where=f"--text {wishes.text}", hint="leave one of them out")
    if wishes.text is None and not all(pair):
        missing = "--target" if wishes.source else "--source" if wishes.target else "--source and --target, or --text"
        folder = wishes.out or DEFAULT_FOLDER
        where = f"{folder}, which holds no run to go on with" if wishes.resume else "leftward train"
        raise SettingsError("there is nothing to learn from", where=where, hint=f"give {missing}")
    validation = (wishes.validation_source, wishes.validation_target)
    if any(validation) and not all(validation):
        given = "--validation-source" if wishes.validation_source else "--validation-target"
        hint = "give --validation-source and --validation-target"
        raise SettingsError("validation wants both sides", where=given, hint=hint)
    if (wishes.text is not None and any(validation)) or (all(pair) and wishes.validation_text is not None):
        given = "--validation-source" if wishes.text is not None else "--validation-text"
        what = "the validation files do not fit what is learned"
        raise SettingsError(what, where=given, hint="give files of the same kind")
    if wishes.documents is not None and wishes.text is None:
        raise SettingsError("only one text has documents", where="--documents", hint="leave it out, or give --text")

    return replace(Data(documents=wishes.documents or "none"), **_places(wishes))


@dataclass(frozen=True, eq=False)
class _Opened:
    """The files of a run, read once from end to end."""

    data: Data
    source: Lines | None
    target: Lines  # the text where there is one file
    validation_source: Lines | None
    validation_target: Lines | None

    @classmethod
    def read(cls, data: Data) -> _Opened:
        def lines(path: str) -> Lines | None:
            return Lines(path) if path else None

        opened = cls(
            data,
            lines(data.source),
            Lines(data.target or data.text),
            lines(data.validation_source),
            lines(data.validation_target or data.validation_text),
        )
        if opened.source is not None:
            require_pairs(opened.source, opened.target)
        if opened.validation_source is not None and opened.validation_target is not None:
            require_pairs(opened.validation_source, opened.validation_target)
        return opened

    @property
    def has_validation(self) -> bool:
        return self.validation_target is not None

    @property
    def rows(self) -> int:
        return len(self.target) if self.data.is_pair else len(self.documents)

    @property
    def documents(self) -> Documents:
        return Documents(self.target, self.data.documents)

    @property
    def files(self) -> dict[str, Lines]:
        """The files by the names of their settings."""
        only = "target" if self.data.is_pair else "text"
        lines = (self.source, self.target, self.validation_source, self.validation_target)
        named = zip(("source", only, "validation_source", f"validation_{only}"), lines, strict=True)
        return {name: one for name, one in named if one is not None}

    @property
    def fingerprints(self) -> dict[str, tuple[int, str]]:
        return {name: (lines.size, lines.sha256) for name, lines in self.files.items()}

    def count_target_tokens(self, tokenizer: Tokenizer) -> int:
        """Predicted tokens of one pass, reckoned from the first lines."""
        some = self.target.text(0, min(len(self.target), 20_000))
        share = len(some.encode()) / max(self.target.size, 1)
        ends = len(self.target) if self.data.is_pair or self.data.documents == "line" else 0
        return round(len(tokenizer.encode_long(some)) / max(share, 1e-9)) + ends

    def samples(self, kit: Kit, seed: int) -> tuple[Samples, Samples | None]:
        """What to train on and what to validate on."""
        run = kit.run
        context = run.model.context
        if self.source is not None:
            return self._pairs(kit, context, seed)
        if self.data.documents == "none":
            return self._book(kit, context)
        documents = self.documents
        if self.validation_target is not None:
            held = Documents(self.validation_target, self.data.documents)
            return Articles(documents, kit.target, context), Articles(held, kit.target, context)
        number = round(run.data.validation_share * len(documents))
        chosen, held = hold_out(len(documents), number, seed)
        return Articles(documents, kit.target, context, chosen), Articles(documents, kit.target, context, held)

    def _pairs(self, kit: Kit, context: int, seed: int) -> tuple[Samples, Samples]:
        source, target, tokenizers = self.source, self.target, (kit.source, kit.target)
        if source is None:
            raise TypeError("there is one text only")
        if self.validation_source is not None and self.validation_target is not None:
            held = Pairs(self.validation_source, self.validation_target, tokenizers, context)
            return Pairs(source, target, tokenizers, context), held
        chosen, kept = hold_out(len(target), round(kit.run.data.validation_share * len(target)), seed)
        return Pairs(source, target, tokenizers, context, chosen), Pairs(source, target, tokenizers, context, kept)

    def _book(self, kit: Kit, context: int) -> tuple[Samples, Samples]:
        text = self.target.text(0, len(self.target))
        if self.validation_target is not None:
            held = self.validation_target.text(0, len(self.validation_target))
            return Book(text, kit.target, context), Book(held, kit.target, context)
        begin, end = split_end(text, kit.run.data.validation_share)
        book = Book(begin, kit.target, context)
        return book, Book(end, kit.target, context, given=int(book.ids[-1]))


def _train_tokenizers(wishes: TrainWishes, opened: _Opened, choices: Choices) -> tuple[Tokenizer, Tokenizer, Any]:
    """A tokenizer for each side, usually one object."""
    kind = choices.take("tokenizer", wishes.tokenizer, lambda: ("bpe", "default"))
    sides: list[Iterable[str]] = [opened.target if opened.data.is_pair else opened.documents]
    if opened.source is not None:
        sides.insert(0, opened.source)
    if kind == "characters":
        if wishes.vocabulary is not None:
            raise SettingsError(
                "a vocabulary of characters is as large as the text makes it", where="--vocabulary", hint="leave it out"
            )
        make: Callable[[Iterable[str]], Tokenizer] = train_characters
    else:
        size = choose_vocabulary(wishes.vocabulary, opened.rows, choices)

        def make(texts: Iterable[str]) -> Tokenizer:
            return train_bpe(texts, size)

    if wishes.separate_tokenizers:
        if opened.source is None:
            raise SettingsError("one text has one tokenizer", where="--separate-tokenizers", hint="leave it out")
        choices.origins["separate_tokenizers"] = "asked for"
        return make(sides[0]), make(sides[1]), kind
    both = make(text for side in sides for text in side)
    return both, both, kind


def _prepare_to_go_on(wishes: TrainWishes, folder: Path) -> Prepared:
    kit = checkpoint.load_kit(folder)
    if kit.run.training is None:
        raise CheckpointError("this model was not trained here", where=str(folder), hint="train one from text files")
    _require_no_contradiction(wishes, kit.run, folder)
    settle_device(kit.run.training.device)
    opened = _Opened.read(replace(kit.run.data, **_places(wishes)))
    _require_same_share(wishes, kit.run.data, opened, folder)
    newest, last = checkpoint.newest_checkpoint(folder), checkpoint.newest_step(folder)
    notes = []
    if newest is None:
        notes.append(f"{folder} holds no whole checkpoint: starting from the beginning")
    else:
        if newest.name != str(last):
            notes.append(f"the checkpoint of step {last} is damaged")
        _require_same_kit(folder, newest)
        facts = checkpoint.load_state(newest).facts
        _require_same_files(facts["data"], opened, folder)
        if facts["torch"] != str(torch.__version__):
            notes.append(
                f"torch was {facts['torch']} and is {torch.__version__}: the run goes on, but not to the same bits"
            )
        notes.append(f"going on from step {newest.name}")
    training, validation = opened.samples(kit, kit.run.training.seed)
    origins = dict.fromkeys(_said(kit.run), f"from {folder}")
    return Prepared(folder, kit, origins, training, validation, opened.fingerprints, False, newest, tuple(notes))


_FILES = ("source", "target", "text", "validation_source", "validation_target", "validation_text")


def _places(wishes: TrainWishes) -> dict[str, Any]:
    """The files that are named; from the root, for a run may be gone on with from anywhere."""
    places = {name: os.path.abspath(path) for name in _FILES if (path := getattr(wishes, name)) is not None}
    for name, path in places.items():
        try:
            path.encode()
        except UnicodeEncodeError:
            hint = "rename it, or make a link to it"
            raise SettingsError("the file's name is not UTF-8", where=f"{_flag(name)} {path!r}", hint=hint) from None
    return places


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _said(run: Run) -> dict[str, Any]:
    """What a run's settings say, by the names of wishes."""
    if run.training is None:
        return {}
    names = ("batch_tokens", "steps", "learning_rate", "warm_up", "validate_every", "save_every", "log_every")
    said = {name: getattr(run.training, name) for name in (*names, "precision", "seed", "threads", "device")}
    stack = run.model.decoder
    return said | {
        "documents": run.data.documents,
        "tokenizer": run.pieces.kind,
        "separate_tokenizers": run.pieces.source is not None,
        "layers": stack.layers,
        "width": run.model.width,
        "heads": stack.heads,
        "feed_forward": stack.feed_forward,
        "dropout": run.model.dropout,
        "context": run.model.context,
    }


def _require_no_contradiction(wishes: TrainWishes, run: Run, folder: Path) -> None:
    asked = {name: value for name, value in asdict(wishes).items() if value is not None}
    said = _said(run) | {name: "none" for name in _FILES if not getattr(run.data, name)}
    for name, value in asked.items():
        if name in said and said[name] != value:
            raise _contradiction(folder, name, said[name], value)
    if wishes.size is not None:
        size = SIZES[wishes.size]
        for name in ("layers", "width", "heads", "feed_forward", "dropout"):
            if name not in asked and said[name] != getattr(size, name):
                raise _contradiction(folder, "size", f"{name} {said[name]}", getattr(size, name))
    # Texts too small give a smaller vocabulary than was asked for, never a larger one.
    if wishes.vocabulary is not None and wishes.vocabulary < run.model.vocabulary:
        raise _contradiction(folder, "vocabulary", run.model.vocabulary, wishes.vocabulary)


def _require_same_share(wishes: TrainWishes, data: Data, opened: _Opened, folder: Path) -> None:
    """A share was rounded to whole rows when the run began."""
    asked = wishes.validation_share
    if asked is None:
        return
    if data.is_pair or data.documents != "none":
        asked = choose_held_out(asked, opened.rows, Choices()) / opened.rows
    if asked != data.validation_share:
        raise _contradiction(folder, "validation_share", data.validation_share, wishes.validation_share)


def _contradiction(folder: Path, name: str, said: object, asked: object) -> SettingsError:
    flag = _flag(name)
    return SettingsError(
        f"the run in {folder} has {said}, not {asked}",
        where=flag,
        hint=f"leave {flag} out to go on with that run, or start another in a new folder",
    )


def _require_same_kit(folder: Path, newest: Path) -> None:
    """Settings and tokenizers are those that the checkpoint was made with, byte for byte."""
    for name in checkpoint.load_kit(newest).files():
        if (folder / name).read_bytes() != (newest / name).read_bytes():
            raise CheckpointError(
                f"{name} has changed since the run began",
                where=str(folder / name),
                hint=f"bring it back: copy {newest / name} there",
            )


def _require_same_files(known: Mapping[str, list[Any]], opened: _Opened, folder: Path) -> None:
    """The content counts, not the place."""
    for name, fingerprint in opened.fingerprints.items():
        if known.get(name) != list(fingerprint):
            raise CheckpointError(
                "the file has changed since the run began",
                where=str(opened.files[name].path),
                hint=f"bring back the file as it was, or start a new run in another folder than {folder}",
            )
