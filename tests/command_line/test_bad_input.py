"""Whatever is wrong with what a person gives: three lines that say what, where and what to do, and nothing is made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tests.training.nursery import Ended, Nursery
from tests.training.tiny import command, outcome, tree, write_texts

from leftward import checkpoint, disk


@pytest.fixture
def texts(scratch: Path) -> Path:
    write_texts(scratch)
    return scratch


def refused(ended: Ended, *parts: object, code: int = 2) -> None:
    """Three lines, and in them these parts."""
    said = ended.refusal(code)
    for part in parts:
        assert str(part) in said, ended.err


FILES = {
    "missing": (None, "there is no such file"),
    "empty": (b"", "the file is empty"),
    "a mark only": (b"\xef\xbb\xbf", "the file is empty"),
    "binary": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "the file is binary"),
    "packed": (b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + bytes(99), "gzip"),
    "UTF-16": ("ein Satz\n".encode("utf-16") * 9, "UTF-16"),
    "UTF-16 without a mark": ("ein Satz\n".encode("utf-16-le") * 9, "UTF-16"),
    "a line of 10 MB": (b"short\n" * 4 + b"x" * 10_000_000 + b"\n", "longer than 1,000,000 bytes"),
    "a bad byte": ("fünf\n".encode() * 5 + "sechs ist schön\n".encode("latin-1"), "0xF6 is not UTF-8"),
    "blank": (b"\n" * 240, "no row is left"),
    "one line": (b"one\n", "cannot be held out"),
}
PLACES = {"a line of 10 MB": ":5", "a bad byte": ":6, byte 14"}
FLAGS = ("--source", "--target", "--text", "--validation-source", "--validation-text")
# Blank lines are text too, and one line is enough to continue, or to validate on.
FINE = {("blank", "--text"), ("blank", "--validation-text")}
FINE |= {("one line", flag) for flag in ("--text", "--validation-source", "--validation-text")}


@pytest.mark.parametrize(("what", "flag"), [case for case in product(FILES, FLAGS) if case not in FINE])
def test_files(what: str, flag: str, nursery: Nursery, texts: Path) -> None:
    content, message = FILES[what]
    path, other = texts / "bad file", texts / "source"
    if content is not None:
        path.write_bytes(content)
    if what in ("blank", "one line"):
        other = texts / "as many lines"  # or the number of lines would be what is wrong
        other.write_text("good\n" * (content or b"").count(b"\n"))
    words = {
        "--source": ("--target", other),
        "--target": ("--source", other),
        "--text": (),
        "--validation-source": (
            "--source",
            texts / "source",
            "--target",
            texts / "target",
            "--validation-target",
            other,
        ),
        "--validation-text": ("--text", texts / "source"),
    }[flag]
    before = tree(texts)
    ended = nursery.run("train", flag, path, *words, "--context", 32, "--vocabulary", 300, "--out", texts / "out")
    places = [] if what in ("blank", "one line") else [f"where: {path}{PLACES.get(what, '')}"]
    refused(ended, message, *places)
    assert tree(texts) == before


def test_a_missing_file_names_its_neighbour(nursery: Nursery, texts: Path) -> None:
    words = command(texts, "pair", texts / "out", "--source", texts / "sourc")
    refused(nursery.run(*words), f"did you mean {texts / 'source'}?")


def test_a_folder_and_a_pipe_are_no_files(nursery: Nursery, texts: Path) -> None:
    os.mkfifo(texts / "pipe")
    for path in (texts, texts / "pipe"):
        refused(nursery.run("train", "--text", path, "--out", texts / "out"), "this is not a file", path)


@pytest.mark.parametrize("kind", ["training", "validation"])
def test_unequal_files_say_how_many_and_where(kind: str, nursery: Nursery, texts: Path) -> None:
    # A line that is three times as long as its neighbours shows where the files part.
    lines = [("lang " * (30 if number % 7 == 0 else 2)).strip() for number in range(240)]
    (texts / "longer").write_text("\n".join(lines) + "\n")
    (texts / "shorter").write_text("\n".join(lines[:150] + lines[151:]) + "\n")
    pair = ("longer", "shorter")
    if kind == "training":
        words = ["train", "--source", texts / pair[0], "--target", texts / pair[1]]
    else:
        words = ["train", "--source", texts / "source", "--target", texts / "target"]
        words += ["--validation-source", texts / pair[0], "--validation-target", texts / pair[1]]
    before = tree(texts)
    ended = nursery.run(*words, "--out", texts / "out")
    refused(ended, "longer has 240 lines", "shorter has 239", f"of {texts / 'longer'}")
    number = int(ended.err.split("near line ")[1].split(" ")[0])
    assert abs(number - 151) <= 7
    assert tree(texts) == before


NUMBERS = {
    "--steps": ("0", "-5", "x", "1.5", "9" * 30),
    "--batch-tokens": ("0", "-1", "16", "9" * 30),
    "--context": ("0", "-1", "129", "9" * 30),
    "--vocabulary": ("10", "-3", "0", "1000000000", "9" * 30),
    "--learning-rate": ("nan", "inf", "-inf", "0", "-1", "1e400", "fast"),
    "--warm-up": ("-1", "9" * 30),
    "--dropout": ("1.5", "1", "-0.1", "nan"),
    "--heads": ("3", "0", "-2", "9" * 30),
    "--layers": ("0", "-1", "100000000"),
    "--width": ("0", "-16", "1000000000", "9" * 30),
    "--feed-forward": ("0", "-1", "1000000000000"),
    "--threads": ("0", "-1", "100000", "9" * 30),
    "--seed": ("-1", "9" * 30),
    "--validate-every": ("0", "-1"),
    "--save-every": ("0", "-1"),
    "--log-every": ("0", "-1"),
    "--validation-share": ("2", "0", "-1", "1", "nan", "inf", "0.9999"),
}
TOO_LARGE = {("--layers", "100000000"), ("--width", "1000000000"), ("--feed-forward", "1000000000000")}


@pytest.mark.parametrize("flag", NUMBERS)
def test_impossible_numbers(flag: str, nursery: Nursery, texts: Path) -> None:
    before = tree(texts)
    for value in NUMBERS[flag]:
        for kind in ("pair", "text"):
            if (kind, value) == ("text", "0.9999"):
                continue  # of one text a share is cut off, and a little is left
            ended = nursery.run(*command(texts, kind, texts / "out", flag, value))
            refused(ended, code=3 if (flag, value) in TOO_LARGE else 2)
            # The setting is named, as a flag or as it stands in a settings file.
            said = ended.err.replace("-", "").replace("_", "").replace(" ", "")
            assert flag.replace("-", "") in said, ended.err
    assert tree(texts) == before


WORDS = {
    ("--stesp", "5"): ("there is no flag --stesp", "did you mean --steps?"),
    ("--resum",): ("there is no flag --resum", "did you mean --resume?"),
    ("--batch_tokens", "5"): ("there is no flag --batch_tokens", "did you mean --batch-tokens?"),
    ("--xyz=3",): ("there is no flag --xyz", "take one of"),
    ("more",): ("'more' is one argument too many", "leftward train --help"),
    ("--steps",): ("expected one argument", "where: --steps"),
    ("--size", "tinny"): ("'tinny' is not possible here", "where: --size", "did you mean tiny?"),
    ("--precision", "float16"): ("where: --precision", "did you mean bfloat16?"),
    ("--tokenizer", "words"): ("where: --tokenizer", "bpe"),
    ("--documents", "line"): ("only one text has documents", "where: --documents"),
    ("--device", "tpu"): ("there is no device called tpu", "where: --device"),
    ("--text", "source"): ("--text and a pair of files contradict each other",),
    ("--validation-text", "source"): ("do not fit", "where: --validation-text"),
    ("--validation-source", "source"): ("both sides", "where: --validation-source"),
    ("--validation-target", "target"): ("both sides", "where: --validation-target"),
    ("--tokenizer", "characters"): ("where: --vocabulary",),
}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_wrong_words(words: tuple[str, ...], nursery: Nursery, texts: Path) -> None:
    before = tree(texts)
    given = [texts / word if word in ("source", "target") else word for word in words]
    refused(nursery.run(*command(texts, "pair", texts / "out", *given)), *WORDS[words])
    assert tree(texts) == before


def test_wrong_words_of_one_text(nursery: Nursery, texts: Path) -> None:
    out = texts / "out"
    refused(nursery.run(*command(texts, "text", out, "--separate-tokenizers")), "where: --separate-tokenizers")
    ended = nursery.run(*command(texts, "text", out, "--validation-source", texts / "source"))
    refused(ended, "both sides")
    both = ("--validation-source", texts / "source", "--validation-target", texts / "target")
    refused(nursery.run(*command(texts, "text", out, *both)), "do not fit", "where: --validation-source")
    share = ("--validation-text", texts / "target", "--validation-share", 0.1)
    refused(nursery.run(*command(texts, "text", out, *share)), "contradict", "where: --validation-share")
    refused(nursery.run("train", "--out", out), "nothing to learn from", "--source and --target, or --text")
    refused(nursery.run("train", "--source", texts / "source", "--out", out), "give --target")
    refused(nursery.run("train", "--target", texts / "source", "--out", out), "give --source")
    assert not out.exists()


@pytest.mark.parametrize(
    ("verb", "hint"), [("trian", "did you mean leftward train?"), ("doktor", "leftward doctor"), ("zzz", "take one of")]
)
def test_an_unknown_verb(verb: str, hint: str, nursery: Nursery) -> None:
    refused(nursery.run(verb), f"there is no verb '{verb}'", hint)


def test_a_device_that_is_not_there(nursery: Nursery, texts: Path) -> None:
    import torch

    missing = next(name for name in ("cuda", "mps") if not getattr(torch, name).is_available())
    refused(nursery.run(*command(texts, "pair", texts / "out", "--device", missing)), "--device", missing, code=3)
    assert not (texts / "out").exists()


def test_output_paths_that_cannot_be(nursery: Nursery, texts: Path) -> None:
    before = tree(texts)
    refused(nursery.run(*command(texts, "pair", texts / "source")), "the output is a file", f"--out {texts / 'source'}")
    refused(nursery.run(*command(texts, "pair", texts / "source" / "deeper")), texts / "source")
    refused(nursery.run(*command(texts, "pair", texts / ("y" * 300))), "File name too long")
    refused(nursery.run(*command(texts, "pair", Path(os.devnull))), "the output is a file")
    assert tree(texts) == before


def test_file_names_that_are_no_text(nursery: Nursery, texts: Path) -> None:
    """The settings file, which is UTF-8, could not hold them."""
    path = os.fsdecode(os.fsencode(texts) + b"/source \xff")
    shutil.copy(texts / "source", path)
    ended = nursery.run(*command(texts, "pair", texts / "out", "--source", path))
    refused(ended, "the file's name is not UTF-8", "where: --source")
    assert not (texts / "out").exists()
    hindi = texts / "वाक्य \n 'quoted' \"twice\""
    shutil.copy(texts / "source", hindi)
    out = texts / "नया model"
    assert nursery.run(*command(texts, "pair", out, "--source", hindi, "--steps", 1)).code == 0
    assert nursery.run("train", "--resume", "--out", out).code == 0


def test_no_permission(nursery: Nursery, texts: Path) -> None:
    (texts / "closed").mkdir(0o700)
    (texts / "closed" / "source").write_text("hidden\n" * 9)
    (texts / "read only").mkdir()
    (texts / "read only").chmod(0o555)
    (texts / "closed").chmod(0o700 if os.geteuid() == 0 else 0)
    texts.chmod(0o755)
    before = tree(texts)
    for out in (texts / "read only" / "out", texts / "closed" / "out", texts / "read only"):
        refused(nursery.run(*command(texts, "pair", out), be_nobody={}), "Permission denied", "a folder of your own")
    words = command(texts, "pair", texts / "out", "--source", texts / "closed" / "source")
    refused(nursery.run(*words, be_nobody={}), "Permission denied", texts / "closed" / "source")
    assert tree(texts) == before
    (texts / "closed").chmod(0o700)
    (texts / "read only").chmod(0o755)


def test_two_runs_in_one_folder(nursery: Nursery, texts: Path) -> None:
    """Of many that begin at once one goes on, and its model is that of a run that was alone."""
    few = ("--steps", 20)
    assert nursery.run(*command(texts, "pair", texts / "alone", *few)).code == 0
    for race in range(3):
        out = texts / f"race {race}"
        ended = nursery.race([tuple(command(texts, "pair", out, *few))] * 4)
        assert sorted(one.code for one in ended) == [0, 2, 2, 2]
        for one in ended:
            if one.code:
                refused(one, out)
                assert "is writing here" in one.err or "holds another run" in one.err
        assert outcome(out) == outcome(texts / "alone")


def test_going_on_while_a_run_is_at_work(nursery: Nursery, texts: Path) -> None:
    out = texts / "out"
    assert nursery.run(*command(texts, "pair", out, "--steps", 9)).code == 0
    with disk.lock(out):
        before = tree(out)
        refused(nursery.run("train", "--resume", "--out", out), f"another run (process {os.getpid()})", out)
        assert tree(out) == before
    assert nursery.run("train", "--resume", "--out", out).code == 0


def test_a_disk_that_fills(nursery: Nursery, texts: Path) -> None:
    """The run ends with the sentence, what was saved stands, and with room again it goes on."""
    few = ("--steps", 20)
    assert nursery.run(*command(texts, "pair", texts / "whole", *few)).code == 0
    for number in (1, 3, 8, 30, 60, 90, 120, 150):
        out = texts / f"full at {number}"
        ended = nursery.run(*command(texts, "pair", out, *few), fill_disk_at={"number": number})
        refused(ended, "No space left on device", "free some space")
        assert not list(out.rglob(f"{disk.HIDDEN}*"))
        assert not (out / disk.LOCK).exists()
        for path in (out / "checkpoints").glob("*"):
            disk.verify(path)
        assert nursery.run(*command(texts, "pair", out, *few, "--resume")).code == 0
        assert outcome(out) == outcome(texts / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = shutil.which("mount")
    mounting = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True)
    if not mounting or mounting.returncode != 0:
        pytest.skip("only root may make the small disk that this fills")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_real_disk_that_fills(small_disk: Path, nursery: Nursery, texts: Path) -> None:
    assert nursery.run(*command(texts, "pair", texts / "whole")).code == 0
    out = small_disk / "out"
    ended = nursery.run(*command(texts, "pair", out))
    refused(ended, "No space left on device", "free some space")
    saved = checkpoint.newest_step(out)
    assert saved
    assert checkpoint.newest_checkpoint(out) == out / "checkpoints" / str(saved)
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    ended = nursery.run(*command(texts, "pair", out, "--resume"))
    assert ended.code == 0, ended.err
    assert f"going on from step {saved}" in ended.err
    assert outcome(out) == outcome(texts / "whole")


def test_three_steps_without_a_number(nursery: Nursery, texts: Path) -> None:
    spoiled = {"steps": [30, 31, 32]}
    ended = nursery.run(*command(texts, "pair", texts / "out"), spoil_steps=spoiled)
    refused(ended, "3 steps in a row", "step 32, window", "a learning rate below")
    assert checkpoint.newest_step(texts / "out") == 28


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("train", "--text", "nowhere"), "text"),
        (("train", "--stesp", "3"), "settings"),
        (("train", "--text", "README.md", "--device", "cuda"), "device"),
        (("trian",), "settings"),
    ],
)
def test_errors_as_json(words: tuple[str, ...], code: str, nursery: Nursery) -> None:
    import torch

    if code == "device" and torch.cuda.is_available():
        words = (*words[:-1], "mps")
    plain, ended = nursery.run(*words), nursery.run(*words, "--json")
    assert ended.code == plain.code
    assert ended.out == ""
    error = json.loads(ended.err)["error"]
    assert error["code"] == code
    assert f"leftward: {error['message']}\n  where: {error['where']}\n  to do: {error['hint']}\n" == plain.err
