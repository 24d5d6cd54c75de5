"""A model folder gives back the very model that was saved, or says which of its files is not what it was."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import tokenizers
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as some
from tests.training.nursery import Nursery
from tests.training.tiny import KINDS, command, write_texts

from leftward import checkpoint, disk
from leftward.checkpoint import Kit, State
from leftward.errors import CheckpointError, LeftwardError, SettingsError
from leftward.model.transformer import Transformer
from leftward.packed import pack
from leftward.settings import Model, Pieces, Run, Stack
from leftward.text.vocabulary import train_bpe, train_characters

# At a low rate the loss still falls at the last step, so that the best weights are among the checkpoints kept.
EVERY = ("--save-every", 5, "--validate-every", 5, "--steps", 30, "--learning-rate", 0.001)


@pytest.fixture(scope="module")
def finished(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each kind; not to be changed."""
    folder = tmp_path_factory.mktemp("models")
    write_texts(folder)
    for kind, more in (("pair", ()), ("text", ()), ("separate", ("--separate-tokenizers",))):
        words = command(folder, "text" if kind == "text" else "pair", folder / kind, *EVERY, *more)
        ended = nursery.run(*words)
        assert ended.code == 0, ended.err
    return {kind: folder / kind for kind in (*KINDS, "separate")}


@pytest.fixture
def model_only(finished: dict[str, Path], scratch: Path) -> Path:
    """A model folder as people pass it on: without checkpoints and log."""
    return Path(
        shutil.copytree(finished["pair"], scratch / "model", ignore=shutil.ignore_patterns("checkpoints", "log*"))
    )


def scores_of(model: Transformer) -> torch.Tensor:
    """What a model says of some rows."""
    rows = [[1, 5, 9, 7], [4, 2], [3] * 9]
    with torch.no_grad():
        return model.scores(model(pack(rows), pack(rows) if model.encoder else None))


FILES = {
    "pair": ["manifest.json", "model.safetensors", "settings.toml", "tokenizer.json"],
    "text": ["manifest.json", "model.safetensors", "settings.toml", "tokenizer.json"],
    "separate": [
        "manifest.json",
        "model.safetensors",
        "settings.toml",
        "tokenizer.source.json",
        "tokenizer.target.json",
    ],
}


@pytest.mark.parametrize("kind", FILES)
def test_what_a_folder_holds(kind: str, finished: dict[str, Path]) -> None:
    folder = finished[kind]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES[kind], "checkpoints", "log.jsonl"])
    manifest = disk.verify(folder)
    assert sorted([*manifest.files, "manifest.json"]) == FILES[kind]
    content = json.loads((folder / "manifest.json").read_text())
    assert content["format"] == 1 and content["weights"] == "the best by validation"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["25", "30"]
    for path in (folder / "checkpoints").iterdir():
        assert sorted(file.name for file in path.iterdir()) == sorted([*FILES[kind], "training.safetensors"])
        assert disk.verify(path).facts["step"] == int(path.name)
        for name in disk.read_manifest(folder).files.keys() - {"model.safetensors"}:
            assert (path / name).read_bytes() == (folder / name).read_bytes()
    for path in folder.glob("tokenizer*.json"):
        assert tokenizers.Tokenizer.from_file(str(path)).get_vocab_size() > 256


@pytest.mark.parametrize("kind", FILES)
def test_the_weights_that_serve_are_the_best(kind: str, finished: dict[str, Path]) -> None:
    folder = finished[kind]
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    best = min((row for row in rows if "validation_loss" in row), key=lambda row: row["validation_loss"])
    loaded = checkpoint.load(folder)
    assert (loaded.step, loaded.note) == (best["step"], "")
    assert disk.read_manifest(folder).facts["validation_loss"] == best["validation_loss"]
    saved = folder / "checkpoints" / str(best["step"])
    assert saved.is_dir()
    assert (folder / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", FILES)
def test_what_is_loaded_is_what_was_saved(kind: str, finished: dict[str, Path]) -> None:
    loaded = checkpoint.load(finished[kind])
    assert not loaded.model.training
    stored = safetensors.torch.load_file(finished[kind] / "model.safetensors")
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, stored[name])
        assert weight.data_ptr() % 64 == 0  # or the same weights would give other bits
    assert stored.keys() == dict(loaded.model.named_parameters()).keys()
    again = checkpoint.load(finished[kind])
    assert torch.equal(scores_of(loaded.model), scores_of(again.model))
    assert loaded.kit.files() == again.kit.files()
    assert (loaded.kit.source is loaded.kit.target) == (kind != "separate")
    for name, content in loaded.kit.files().items():
        assert (finished[kind] / name).read_bytes() == content
    text = "abc mno </s> <unknown> é"
    for side in (loaded.kit.source, loaded.kit.target):
        assert side.decode(side.encode(text)) == text


@pytest.mark.parametrize("name", ["model.safetensors", "settings.toml", "tokenizer.json"])
def test_a_damaged_file_is_named_with_its_hash(name: str, model_only: Path) -> None:
    before = disk.hash_file(model_only / name)
    content = bytearray((model_only / name).read_bytes())
    content[len(content) // 2] ^= 1
    (model_only / name).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(model_only)
    error = caught.value
    assert error.what.startswith(f"{name} is damaged")
    assert before.sha256 in error.what and disk.hash_file(model_only / name).sha256 in error.what
    assert error.where == str(model_only / name)
    assert "copy the folder again" in error.hint


@pytest.mark.parametrize("name", FILES["pair"])
def test_a_missing_file_is_named(name: str, model_only: Path) -> None:
    (model_only / name).unlink()
    with pytest.raises(CheckpointError, match=re.escape(name)):
        checkpoint.load(model_only)


def flip(chance: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(chance: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def zero(chance: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    first = chance.randrange(len(content))
    last = min(first + chance.randrange(1, 512), len(content))
    content[first:last] = bytes(last - first)
    path.write_bytes(content)


def lengthen(chance: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 99)))


def swap(chance: random.Random, path: Path) -> None:
    other = chance.choice([one for one in path.parent.iterdir() if one != path and one.is_file()])
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def remove(chance: random.Random, path: Path) -> None:
    path.unlink()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kept", [False, True], ids=["no checkpoint", "a checkpoint"])
def test_no_damage_is_loaded(kept: bool, finished: dict[str, Path], scratch: Path) -> None:
    """300 damages of all kinds: refused where nothing else can serve, and never a wrong model."""
    ignored = shutil.ignore_patterns("log*") if kept else shutil.ignore_patterns("checkpoints", "log*")
    whole = Path(shutil.copytree(finished["pair"], scratch / "whole", ignore=ignored))
    right = scores_of(checkpoint.load(whole).model)
    copies = iter(range(10_000))

    @seed(7)
    @settings(max_examples=150, database=None)
    @given(
        some.sampled_from((flip, flip, cut, zero, lengthen, swap, remove)),
        some.sampled_from(FILES["pair"]),
        some.randoms(),
    )
    def try_one(damage, name, chance) -> None:
        folder = Path(shutil.copytree(whole, scratch / str(next(copies))))
        before = (folder / name).read_bytes()
        damage(chance, folder / name)
        if (folder / name).exists() and (folder / name).read_bytes() == before:
            return  # zeros in the place of zeros
        try:
            loaded = checkpoint.load(folder)
        except LeftwardError as error:
            assert not kept
            assert error.where and error.hint
        else:
            assert kept
            assert torch.equal(scores_of(loaded.model), right)  # the newest checkpoint holds the best weights here
            assert loaded.step == 30 and "the checkpoint of step 30 serves instead" in loaded.note
        shutil.rmtree(folder)

    try_one()


def test_weights_that_were_being_replaced(finished: dict[str, Path], scratch: Path) -> None:
    """What a kill leaves between the new weights and their manifest: the newest checkpoint serves, and says so."""
    folder = Path(shutil.copytree(finished["text"], scratch / "model"))
    other = checkpoint.load_state(folder / "checkpoints" / "25").weights
    disk.write_file(folder / "model.safetensors", safetensors.torch.save({**other}))
    if disk.hash_file(folder / "model.safetensors") == disk.read_manifest(folder).files["model.safetensors"]:
        disk.write_file(folder / "model.safetensors", b"half")
    loaded = checkpoint.load(folder)
    assert loaded.step == 30
    assert re.match(r"model.safetensors is damaged: .*; the checkpoint of step 30 serves instead$", loaded.note)
    for name, weight in checkpoint.load_state(folder / "checkpoints" / "30").weights.items():
        assert torch.equal(dict(loaded.model.named_parameters())[name], weight)
    # The newest is damaged as well: the one before.
    (folder / "checkpoints" / "30" / "model.safetensors").write_bytes(b"half")
    assert checkpoint.load(folder).step == 25
    (folder / "checkpoints" / "25" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        checkpoint.load(folder)


def test_before_the_first_weights_serve_a_checkpoint_does(finished: dict[str, Path], scratch: Path) -> None:
    folder = Path(shutil.copytree(finished["pair"], scratch / "model"))
    (folder / "model.safetensors").unlink()
    (folder / "manifest.json").unlink()
    loaded = checkpoint.load(folder)
    assert (loaded.step, loaded.note) == (30, "manifest.json is missing; the checkpoint of step 30 serves instead")


def test_what_is_no_model_folder(scratch: Path) -> None:
    (scratch / "file").write_text("text")
    for path, what in (
        (scratch / "nowhere", "there is no such folder"),
        (scratch / "file", "this is a file, not a model folder"),
        (scratch / "file" / "deeper", "there is no such folder"),
        (scratch / ("x" * 300), "there is no such folder"),
        (scratch, "manifest.json is missing"),
    ):
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(path)
        assert caught.value.what == what
        assert caught.value.where == str(path) and caught.value.hint


STACK = Stack(layers=1, heads=2, feed_forward=16)
WORDS = train_characters(["so low, so slow"])


def a_kit(*, separate: bool = False) -> Kit:
    source = train_bpe(["so low"] * 9, vocabulary=270) if separate else WORDS
    ids = checkpoint.ids_of(WORDS.controls)
    pieces = Pieces("characters", ids, checkpoint.ids_of(source.controls) if separate else None)
    return Kit(Run(Model(vocabulary=WORDS.size, width=8, decoder=STACK), pieces), source, WORDS)


def a_state(number: int) -> State:
    tensors = {"weight": torch.full((3,), float(number))}
    return State(tensors, {"random": torch.arange(number + 1)}, {"progress": number})


@pytest.mark.parametrize("separate", [False, True])
def test_a_kit_comes_back(separate: bool, scratch: Path) -> None:
    kit = a_kit(separate=separate)
    checkpoint.begin_folder(scratch / "deep" / "model", kit)
    again = checkpoint.load_kit(scratch / "deep" / "model")
    assert again.run == kit.run and again.files() == kit.files()
    assert again.source.controls == kit.source.controls and again.target.controls == kit.target.controls
    assert (again.source is again.target) == (not separate)


def test_a_state_comes_back(scratch: Path) -> None:
    kit = a_kit()
    checkpoint.begin_folder(scratch, kit)
    for step in (3, 5, 8, 13):
        checkpoint.save_state(scratch, kit, step, a_state(step))
        newest = checkpoint.newest_checkpoint(scratch)
        assert newest == scratch / "checkpoints" / str(step)
        assert checkpoint.newest_step(scratch) == step
        state = checkpoint.load_state(newest)
        assert torch.equal(state.weights["weight"], a_state(step).weights["weight"])
        assert torch.equal(state.tensors["random"], torch.arange(step + 1))
        assert state.facts == {"step": step, "progress": step}
    assert steps(scratch) == [8, 13]


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def test_what_was_damaged_makes_room_and_not_the_whole_ones(scratch: Path) -> None:
    kit = a_kit()
    checkpoint.begin_folder(scratch, kit)
    for step in (10, 20):
        checkpoint.save_state(scratch, kit, step, a_state(step))
    (scratch / "checkpoints" / "20" / "model.safetensors").write_bytes(b"")
    # The run goes on from 10 and is stopped before it is where it was.
    checkpoint.save_state(scratch, kit, 12, a_state(12))
    assert steps(scratch) == [10, 12]
    (scratch / "checkpoints" / "12" / "model.safetensors").write_bytes(b"")
    checkpoint.save_state(scratch, kit, 12, a_state(12))
    assert steps(scratch) == [10, 12]
    assert checkpoint.newest_checkpoint(scratch) == scratch / "checkpoints" / "12"


def test_other_things_in_the_folder_of_checkpoints_are_left_alone(scratch: Path) -> None:
    kit = a_kit()
    checkpoint.begin_folder(scratch, kit)
    for name in ("best", "7a", "-3", "٣", ".hidden"):
        (scratch / "checkpoints" / name).mkdir()
    (scratch / "checkpoints" / "99").write_text("a file")
    for step in (1, 2, 3):
        checkpoint.save_state(scratch, kit, step, a_state(step))
    names = {path.name for path in (scratch / "checkpoints").iterdir()}
    assert names == {"best", "7a", "-3", "٣", ".hidden", "99", "2", "3"}


def test_traces_of_a_run(scratch: Path) -> None:
    assert not checkpoint.holds_a_run(scratch / "nowhere")
    assert not checkpoint.holds_a_run(scratch)
    assert checkpoint.newest_step(scratch) is None and checkpoint.newest_checkpoint(scratch) is None
    (scratch / "checkpoints").mkdir()
    (scratch / "tokenizer.json").touch()
    (scratch / "notes.txt").touch()
    assert not checkpoint.holds_a_run(scratch)
    for name in ("settings.toml", "model.safetensors", "log.jsonl", "manifest.json", "checkpoints/7"):
        (scratch / name).mkdir()
        assert checkpoint.holds_a_run(scratch)
        (scratch / name).rmdir()
    assert not checkpoint.is_sound(scratch)


def test_weights_that_do_not_fit_are_named() -> None:
    model = Transformer(a_kit().run.model)
    weights = checkpoint.weights_of(model)
    name = sorted(weights)[0]
    for spoilt, what in (
        ({key: value for key, value in weights.items() if key != name}, f"{name} is not in the file"),
        ({**weights, "a.stranger": torch.zeros(1)}, "a.stranger is not in the model"),
        ({**weights, name: torch.zeros(2, 2, 2)}, re.escape(f"{name} is (2, 2, 2), and the settings want")),
    ):
        before = {key: value.clone() for key, value in weights.items()}
        with pytest.raises(CheckpointError, match=what) as caught:
            checkpoint.put_weights(model, spoilt, where="here")
        assert caught.value.where == "here" and caught.value.hint
        assert all(torch.equal(value, before[key]) for key, value in checkpoint.weights_of(model).items())


def test_a_tied_weight_is_written_once() -> None:
    tied = Model(vocabulary=9, width=8, decoder=STACK, encoder=STACK, tie="all")
    loose = Model(vocabulary=9, width=8, decoder=STACK, encoder=STACK, tie="none")
    shapes = [[tuple(w.shape) for w in checkpoint.weights_of(Transformer(one)).values()] for one in (tied, loose)]
    assert shapes[0].count((9, 8)) == 1 and shapes[1].count((9, 8)) == 3


def test_weights_are_copied_and_not_used_where_they_lie() -> None:
    model = Transformer(a_kit().run.model)
    memory = torch.empty(10_000_000 // 4 + 1)[1:]  # at no multiple of 64 bytes
    weights, place = {}, 0
    for name, weight in checkpoint.weights_of(model).items():
        weights[name] = memory[place : place + weight.numel()].view(weight.shape).copy_(torch.randn_like(weight))
        place += weight.numel()
    checkpoint.put_weights(model, weights, where="")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])
        assert weight.data_ptr() % 64 == 0


def test_a_settings_file_that_was_edited(model_only: Path) -> None:
    path = model_only / "settings.toml"
    path.write_text(path.read_text().replace("[model.decoder]", "[model.decodr]"))
    with pytest.raises(SettingsError) as caught:
        checkpoint.load_kit(model_only)
    assert caught.value.what == 'there is no setting "decodr"'
    assert caught.value.where == f"{path}.model" and caught.value.hint == 'did you mean "decoder"?'


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"model": 3}', b"[1, 2]", b"null"])
def test_a_tokenizer_that_is_none(content: bytes, model_only: Path) -> None:
    (model_only / "tokenizer.json").write_bytes(content)
    with pytest.raises(LeftwardError) as caught:
        checkpoint.load_kit(model_only)
    assert caught.value.where == str(model_only / "tokenizer.json") and caught.value.hint
