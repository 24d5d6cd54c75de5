"""A manifest vouches for its folder: whatever is changed in it, the change is named."""

import hashlib
import json
import os
import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward import disk
from leftward.disk import Fingerprint, Manifest
from leftward.errors import CheckpointError

SIZES = {"model.safetensors": 70_001, "tokenizer.json": 300, "state.safetensors": 70_001, "empty": 0}
FACTS = {"step": 300, "loss": 1.1, "random": [1, 2**63, -1], "torch": "2.13.0", "ü": {"none": None}}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def fill(folder):
    chance = random.Random(5)
    for name, size in SIZES.items():
        disk.write_file(folder / name, chance.randbytes(size))
    disk.write_manifest(folder, Manifest({name: disk.hash_file(folder / name) for name in SIZES}, FACTS))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    return tmp_path_factory.mktemp("workplace") / "folder"


def damage(path, data):
    """Change a file in a way a disk, a copy or a hand may; the name of what was done."""
    content = bytearray(path.read_bytes())
    kinds = ["extend", "delete", "folder", *(["flip", "zero", "cut", "insert"] if content else [])]
    kind = data.draw(st.sampled_from(kinds), label="kind")
    at = data.draw(st.integers(0, max(0, len(content) - 1)), label="at")
    if kind == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    elif kind == "zero":
        content[at : at + 512] = bytes(len(content[at : at + 512]))
    elif kind == "cut":
        del content[at:]
    elif kind == "insert":
        content[at:at] = data.draw(st.binary(min_size=1, max_size=9), label="inserted")
    elif kind == "extend":
        content += data.draw(st.binary(min_size=1, max_size=9), label="added")
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "delete":
        path.write_bytes(content)


@settings(max_examples=200, deadline=None, database=None)
@given(data=st.data())
def test_every_change_is_found_and_named(data, whole, workplace):
    shutil.rmtree(workplace, ignore_errors=True)
    shutil.copytree(whole, workplace)
    assert disk.verify(workplace) == disk.read_manifest(whole)
    name = data.draw(st.sampled_from([*SIZES, disk.MANIFEST]), label="name")
    before = (workplace / name).read_bytes()
    if name in SIZES and data.draw(st.booleans(), label="swap"):
        other = data.draw(st.sampled_from([file for file in SIZES if file != name]), label="other")
        (workplace / name).rename(workplace / "between")
        (workplace / other).rename(workplace / name)
        (workplace / "between").rename(workplace / other)
        name = min(name, other, key=list(SIZES).index)
    else:
        damage(workplace / name, data)
        if (workplace / name).is_file() and (workplace / name).read_bytes() == before:
            return
    with pytest.raises(CheckpointError) as refused:
        disk.verify(workplace)
    assert refused.value.what.startswith((f"{name} is damaged", f"{name} is missing"))


@settings(max_examples=100, deadline=None, database=None)
@given(facts=st.dictionaries(st.text().filter(lambda k: k not in ("format", "files", "sha256")), JSON))
def test_facts_come_back_as_they_were(facts, workplace):
    workplace.mkdir(exist_ok=True)
    disk.write_manifest(workplace, Manifest({}, facts))
    assert disk.read_manifest(workplace) == Manifest({}, facts)
    assert json.loads((workplace / disk.MANIFEST).read_bytes())["format"] == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"loss": float("nan")},
        {"loss": float("inf")},
        {"shape": (1, 2)},
        {"steps": {1: 2}},
        {"set": {1}},
        {"format": 1},
        {"format": 2},
        {"files": {}},
        {"sha256": "0" * 64},
    ],
    ids=str,
)
def test_facts_that_would_not_come_back_are_refused(facts, tmp_path):
    with pytest.raises(CheckpointError):
        disk.write_manifest(tmp_path, Manifest({}, facts))
    assert list(tmp_path.iterdir()) == []


BAD_NAMES = ["", ".", "..", "../up", "/etc/passwd", "a/b", "a\\b", "C:x", ".hidden", "a\0", "a\n", "é", "-"]
GOOD = Fingerprint(0, hashlib.sha256().hexdigest())
BAD_PRINTS = [
    Fingerprint(-1, GOOD.sha256),
    Fingerprint(True, GOOD.sha256),
    Fingerprint(0.0, GOOD.sha256),
    Fingerprint("0", GOOD.sha256),
    Fingerprint(0, GOOD.sha256.upper()),
    Fingerprint(0, GOOD.sha256[1:]),
    Fingerprint(0, None),
]


@pytest.mark.parametrize(
    "files",
    [*({name: GOOD} for name in [*BAD_NAMES, disk.MANIFEST]), *({"a": bad} for bad in BAD_PRINTS)],
    ids=str,
)
def test_files_that_cannot_be_are_refused_on_the_way_in_and_out(files, tmp_path):
    with pytest.raises(CheckpointError):
        disk.write_manifest(tmp_path, Manifest(files))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / disk.MANIFEST).write_bytes(disk._render(Manifest(files)))
    with pytest.raises(CheckpointError, match="damaged"):
        disk.read_manifest(tmp_path)


def spelled(old, new):
    """What we would write, but for one spelling; the checksum, taken over the values, may even be right."""
    content = disk._render(Manifest({}, {"step": 100, "loss": 2.5}))
    assert content.count(old) == 1
    return content.replace(old, new)


HOSTILE = {
    "empty": b"",
    "not JSON": b"format: 1",
    "a list": b"[]",
    "a number": b"1",
    "a text": b'"format"',
    "not UTF-8": b'{"format": 1, "files": {}, "x": "\xff"}',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a long number": b'{"format": ' + b"9" * 5_000 + b"}",
    "no files": b'{"format": 1}',
    "files a list": b'{"format": 1, "files": [], "sha256": ""}',
    "a file a text": b'{"format": 1, "files": {"a": "x"}, "sha256": ""}',
    "a file with more": b'{"format": 1, "files": {"a": {"size": 0, "sha256": "", "x": 1}}, "sha256": ""}',
    "NaN": spelled(b"2.5", b"NaN"),
    "beyond all floats": spelled(b"2.5", b"1e999"),
    "another spelling": spelled(b"2.5", b"2.50"),
    "a key twice": spelled(b'"step": 100', b'"step": 100, "step": 100'),
    "edited by hand": spelled(b"100", b"101"),
    "another format": spelled(b'"format": 1', b'"format": 0'),
    "true for 1": spelled(b'"format": 1', b'"format": true'),
    "something after": disk._render(Manifest({})) + b"\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_manifest_is_refused_in_words(content, tmp_path):
    (tmp_path / disk.MANIFEST).write_bytes(content)
    for read in (disk.read_manifest, disk.verify):
        with pytest.raises(CheckpointError, match="manifest.json is damaged"):
            read(tmp_path)


def test_a_newer_format_is_said(tmp_path):
    (tmp_path / disk.MANIFEST).write_text('{"format": 2, "anything": "else"}')
    with pytest.raises(CheckpointError, match="format 2.*up to 1") as refused:
        disk.verify(tmp_path)
    assert "newer" in refused.value.hint


def test_a_pipe_in_a_files_place_does_not_hang(whole, tmp_path):
    for name in ("tokenizer.json", disk.MANIFEST):
        folder = shutil.copytree(whole, tmp_path / name)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            disk.verify(folder)


def test_a_file_that_cannot_be_read_is_a_bad_checkpoint(whole, monkeypatch):
    operation = disk._operation

    def fail(name, path, action):
        def unreadable():
            raise OSError(5, "Input/output error")

        return operation(name, path, unreadable if path.name == "tokenizer.json" else action)

    monkeypatch.setattr(disk, "_operation", fail)
    with pytest.raises(CheckpointError, match="Input/output error") as refused:
        disk.verify(whole)
    assert refused.value.where.endswith("tokenizer.json")


def test_other_files_and_links_are_no_damage(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "copy")
    (folder / "log.jsonl").write_text("grows")
    (folder / "tokenizer.json").rename(tmp_path / "elsewhere")
    (folder / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    assert disk.verify(folder).facts == FACTS


def test_a_manifest_of_version_one_loads_for_ever(tmp_path):
    """Word for word what the first version wrote: if this fails, old checkpoints no longer load."""
    (tmp_path / disk.MANIFEST).write_text(
        """{
  "format": 1,
  "step": 100,
  "loss": 0.1,
  "files": {
    "a.txt": {
      "size": 3,
      "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }
  },
  "sha256": "c09b1b8e451a5b23bb0476cca5b3b0c2d16cf2d77bfb3c633b17a6e4dc9803c3"
}"""
    )
    (tmp_path / "a.txt").write_bytes(b"abc")
    assert disk.verify(tmp_path).facts == {"step": 100, "loss": 0.1}
