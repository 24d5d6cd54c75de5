"""A model, its tokenizers and its settings, and the state of its training, to a folder and back.

    DIR/model.safetensors          the weights that serve: the best by validation
    DIR/tokenizer.json             or tokenizer.source.json and tokenizer.target.json where the sides differ
    DIR/settings.toml              the run in words
    DIR/manifest.json              step, and size and SHA-256 of the files above; written last
    DIR/log.jsonl                  grows, and stands in no manifest
    DIR/checkpoints/STEP/          one whole state of training: the same files, and the optimizer's

A folder whose manifest does not fit its files was cut off while its weights were replaced; then the newest whole
checkpoint serves in its place, and says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from leftward.disk import (
    MANIFEST,
    Manifest,
    hash_file,
    make_folder,
    publish_folder,
    remove_folder,
    verify,
    write_file,
    write_manifest,
)
from leftward.errors import CheckpointError, LeftwardError, SettingsError, TextError
from leftward.model.transformer import Transformer
from leftward.settings import ControlIds, Run
from leftward.tables import from_toml, to_toml
from leftward.text.tokenizer import Controls, Tokenizer
from leftward.text.vocabulary import from_json

WEIGHTS = "model.safetensors"
SETTINGS = "settings.toml"
STATE = "training.safetensors"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
KEPT = 2


@dataclass(frozen=True, eq=False)
class Kit:
    """What a model needs beside its weights: the run in words, and a tokenizer for each side, usually one object."""

    run: Run
    source: Tokenizer
    target: Tokenizer

    def files(self) -> dict[str, bytes]:
        """The files that hold it."""
        files = {SETTINGS: to_toml(self.run).encode()}
        if self.source is self.target:
            return files | {"tokenizer.json": self.target.to_json().encode()}
        return files | {
            "tokenizer.source.json": self.source.to_json().encode(),
            "tokenizer.target.json": self.target.to_json().encode(),
        }


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model read from a folder."""

    model: Transformer
    kit: Kit
    step: int
    note: str = ""  # what a person should know of where the weights came from


@dataclass(frozen=True, eq=False)
class State:
    """Everything a run needs to go on as if it had never stopped."""

    weights: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]  # the optimizer's, and those of random generators
    facts: Mapping[str, Any]  # counts, places and fingerprints; JSON values


def controls_of(ids: ControlIds) -> Controls:
    """The controls of a tokenizer, from the settings."""
    return Controls(ids.start, ids.end, ids.unknown, tuple(zip(ids.tags, ids.tag_ids, strict=True)))


def ids_of(controls: Controls) -> ControlIds:
    """The settings, from the controls of a tokenizer."""
    return ControlIds(controls.start, controls.end, controls.unknown, tuple(name for name, _ in controls.tags))


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """The weights by name; a weight that is tied to another stands there once."""
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def put_weights(model: Transformer, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Copy weights into a model.

    They are copied and never used as the file has them: a tensor that does not begin at a multiple of 64 bytes gives
    other bits.
    """
    own = dict(model.named_parameters())
    for name in sorted(own.keys() | weights.keys()):
        if name not in weights or name not in own:
            what = "is not in the file" if name in own else "is not in the model"
            raise CheckpointError(f"the weight {name} {what}", where=where, hint="take an intact copy of the model")
        if own[name].shape != weights[name].shape:
            raise CheckpointError(
                f"the weight {name} is {tuple(weights[name].shape)}, and the settings want {tuple(own[name].shape)}",
                where=where,
                hint="take weights and settings of one model",
            )
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def begin_folder(folder: Path, kit: Kit) -> None:
    """Write what stays the same for the whole of a run."""
    make_folder(folder / CHECKPOINTS)
    # Settings come last: where they stand, the tokenizers they speak of stand too.
    for name, content in sorted(kit.files().items(), key=lambda file: file[0] == SETTINGS):
        write_file(folder / name, content)


def publish_weights(folder: Path, kit: Kit, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Make these the weights that serve, with what is to be known of them; the manifest comes last."""
    write_file(folder / WEIGHTS, safetensors.torch.save(dict(weights)))
    names = [WEIGHTS, *kit.files()]
    write_manifest(folder, Manifest({name: hash_file(folder / name) for name in names}, facts))


def save_state(folder: Path, kit: Kit, step: int, state: State) -> None:
    """Publish one whole state of training; the newest ones are kept."""
    path = folder / CHECKPOINTS / str(step)
    if path.exists():
        # Damaged, or the run would have gone on from it.
        remove_folder(path)
    contents = {
        WEIGHTS: safetensors.torch.save(dict(state.weights)),
        STATE: safetensors.torch.save(dict(state.tensors)),
        **kit.files(),
    }
    with publish_folder(path) as unfinished:
        for name, content in contents.items():
            write_file(unfinished / name, content)
        files = {name: hash_file(unfinished / name) for name in contents}
        write_manifest(unfinished, Manifest(files, {"step": step, **state.facts}))
    others = [other for other in _checkpoints(folder) if other != path]
    newer = [other for other in others if int(other.name) > step]  # damaged too
    for other in newer + others[len(newer) + KEPT - 1 :]:
        remove_folder(other)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, or None."""
    for path in _checkpoints(folder):
        try:
            verify(path)
        except CheckpointError:
            continue
        return path
    return None


def load_state(checkpoint: Path) -> State:
    """Read one whole state of training."""
    manifest = verify(checkpoint)
    return State(_read(checkpoint / WEIGHTS), _read(checkpoint / STATE), manifest.facts)


def load_kit(folder: Path) -> Kit:
    """Read settings and tokenizers of a model folder or a checkpoint."""
    path = folder / SETTINGS
    if not os.path.isfile(path):
        raise CheckpointError(
            "this is no model folder", where=str(folder), hint="name a folder that leftward train has written"
        )
    run = from_toml(Run, _text(path), where=str(path))
    controls = controls_of(run.pieces.target)
    if run.pieces.source is None:
        both = _tokenizer(folder / "tokenizer.json", controls)
        return Kit(run, both, both)
    return Kit(
        run,
        _tokenizer(folder / "tokenizer.source.json", controls_of(run.pieces.source)),
        _tokenizer(folder / "tokenizer.target.json", controls),
    )


def load(folder: Path) -> Loaded:
    """Read the model that serves.

    Every file is checked against the manifest's hash first. Where one does not fit, as when a run was cut off while its
    weights were being replaced, the newest whole checkpoint serves; where there is none, the file is named.
    """
    if not os.path.isdir(folder):
        what = "this is a file, not a model folder" if os.path.exists(folder) else "there is no such folder"
        raise CheckpointError(what, where=str(folder), hint="name a folder that leftward train has written")
    place, note = folder, ""
    try:
        step = verify(folder).facts.get("step", 0)
    except CheckpointError as error:
        checkpoint = newest_checkpoint(folder)
        if checkpoint is None:
            raise error
        place, step = checkpoint, int(checkpoint.name)
        note = f"{error.what}; the checkpoint of step {step} serves instead"
    kit = load_kit(place)
    try:
        model = Transformer(kit.run.model)
    except RuntimeError as error:
        raise CheckpointError(f"the model cannot be built: {error}", where=str(place / SETTINGS)) from None
    put_weights(model, _read(place / WEIGHTS), where=str(place / WEIGHTS))
    return Loaded(model.eval(), kit, step, note)


def holds_a_run(folder: Path) -> bool:
    """Whether a folder holds anything of a run."""
    traces = [folder / name for name in (SETTINGS, WEIGHTS, LOG, MANIFEST)] + _checkpoints(folder)
    return any(os.path.exists(trace) for trace in traces)


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, or None."""
    newest = next(iter(_checkpoints(folder)), None)
    return None if newest is None else int(newest.name)


def is_sound(folder: Path) -> bool:
    """Whether the weights that serve are whole."""
    try:
        verify(folder)
    except LeftwardError:
        return False
    return True


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    parent = folder / CHECKPOINTS
    if not os.path.isdir(parent):
        return []
    named = [path for path in parent.iterdir() if path.is_dir() and path.name.isascii() and path.name.isdigit()]
    return sorted(named, key=lambda path: int(path.name), reverse=True)


def _tokenizer(path: Path, controls: Controls) -> Tokenizer:
    try:
        return from_json(_text(path), controls)
    except TextError as error:
        raise CheckpointError(error.what, where=str(path), hint=error.hint) from None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(os.fspath(path))
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}", where=str(path), hint="take an intact copy of the model"
        ) from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path.name} cannot be read: {error}", where=str(path), hint="take an intact copy of the model"
        ) from None
