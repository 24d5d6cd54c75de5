"""Getting a run ready, anew or to go on: read the files, make or read the tokenizers, settle every setting.

Nothing is written here, so a run that is refused leaves no trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leftward import checkpoint
from leftward.checkpoint import Kit
from leftward.errors import CheckpointError, SettingsError
from leftward.machine import count_cores, is_medium_as_exact_as_float32, settle_device
from leftward.settings import Data, Pieces, Run, Training
from leftward.text.corpus import Documents, Lines, require_pairs
from leftward.text.order import hold_out
from leftward.text.samples import Articles, Book, Pairs, Samples, split_end
from leftward.text.stream import Stream
from leftward.text.tokenizer import Tokenizer
from leftward.text.vocabulary import train_bpe, train_characters
from leftward.training.plan import SIZES, Choices, Facts, choose_held_out, choose_vocabulary, make_run
from leftward.wishes import DEFAULT_FOLDER, TrainWishes


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin or to go on."""

    folder: Path
    kit: Kit
    origins: Mapping[str, str]  # where each setting came from
    training_samples: Samples
    validation_samples: Samples | None
    files: Mapping[str, tuple[int, str]]  # size and SHA-256 of every file read
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
    if folder.exists() and not folder.is_dir():
        raise SettingsError("the output is a file", where=f"--out {folder}", hint="name a folder that is not there yet")
    if wishes.resume and (folder / checkpoint.SETTINGS).is_file():
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
    training, validation = opened.samples(kit, seed)
    _require_training_fits(run, training)
    return Prepared(folder, kit, choices.origins, training, validation, opened.fingerprints)


def _require_training_fits(run: Run, training: Samples) -> None:
    """Complain now, and not when the folder is made."""
    if run.training is not None:
        Stream([training], budget=run.training.batch_tokens, seed=run.training.seed)


def _data_of(wishes: TrainWishes) -> Data:
    pair = (wishes.source, wishes.target)
    if wishes.text is not None and any(pair):
        raise SettingsError("--text and a pair of files contradict each other", hint="leave one of them out")
    if wishes.text is None and not all(pair):
        missing = "--target" if wishes.source else "--source" if wishes.target else "--source and --target, or --text"
        raise SettingsError(f"there is nothing to learn from: {missing} is missing", hint=f"give {missing}")
    validation = (wishes.validation_source, wishes.validation_target)
    if any(validation) and not all(validation):
        raise SettingsError("validation wants both sides", hint="give --validation-source and --validation-target")
    if (wishes.text is not None and any(validation)) or (all(pair) and wishes.validation_text is not None):
        raise SettingsError("the validation files do not fit what is learned", hint="give files of the same kind")
    if wishes.documents is not None and wishes.text is None:
        raise SettingsError("only one text has documents", where="--documents", hint="leave it out, or give --text")

    def path(wished: str | None) -> str:
        return "" if wished is None else os.path.abspath(wished)

    return Data(
        source=path(wishes.source),
        target=path(wishes.target),
        text=path(wishes.text),
        documents=wishes.documents or "none",
        validation_source=path(wishes.validation_source),
        validation_target=path(wishes.validation_target),
        validation_text=path(wishes.validation_text),
    )


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
    def fingerprints(self) -> dict[str, tuple[int, str]]:
        files = (self.source, self.target, self.validation_source, self.validation_target)
        return {str(lines.path): (lines.size, lines.sha256) for lines in files if lines is not None}

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
    data = _moved(wishes, kit.run.data)
    opened = _Opened.read(data)
    newest = checkpoint.newest_checkpoint(folder)
    notes = []
    if newest is None:
        notes.append(f"{folder} holds no whole checkpoint: starting from the beginning")
    else:
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


def _moved(wishes: TrainWishes, data: Data) -> Data:
    """The files of the run, from where they are now said to be."""
    places = {name: os.path.abspath(path) for name in _FILES if (path := getattr(wishes, name)) is not None}
    return replace(data, **places)


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
    said = _said(run)
    for name in ("source", "target", "text"):
        if name in asked and not getattr(run.data, name):
            said[name] = "none"
    if wishes.size is not None:
        size = SIZES[wishes.size]
        for name in ("layers", "width", "heads", "feed_forward", "dropout"):
            asked.setdefault(name, getattr(size, name))
    for name, value in asked.items():
        if name in said and said[name] != value:
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(
                f"the run in {folder} has {said[name]}, not {value}",
                where=flag,
                hint=f"leave {flag} out to go on with that run, or start another in a new folder",
            )


def _require_same_files(known: Mapping[str, list[Any]], opened: _Opened, folder: Path) -> None:
    """The content counts, not the place."""
    contents = {tuple(fingerprint) for fingerprint in known.values()}
    for path, fingerprint in opened.fingerprints.items():
        if tuple(fingerprint) not in contents:
            raise CheckpointError(
                "the file has changed since the run began",
                where=path,
                hint=f"bring back the file as it was, or start a new run in another folder than {folder}",
            )
