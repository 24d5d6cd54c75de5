"""Files are read as they were written, or refused with their place."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest

from leftward.errors import TextError
from leftward.text.corpus import Documents, Lines, require_pairs
from leftward.text.scan import LONGEST_LINE

BOM = b"\xef\xbb\xbf"
# What other readers end a line at, and what they choke on.
HOSTILE = [*"\r\u2028\u2029\x85\x0b\x0c\x1c\x1e\0\ufeff\u200déन👩"]


def refusal(path: Path) -> TextError:
    with pytest.raises(TextError) as caught:
        Lines(path)
    assert caught.value.hint
    return caught.value


def hostile_line(chance: random.Random) -> str:
    inside = chance.choices([*HOSTILE, "a", "bc", " ", ""], k=chance.randrange(12))
    # A letter at either end: "\r" before "\n" belongs to the line end, and U+FEFF before all may be a mark.
    return chance.choice(["", "x" + "".join(inside) + "x"])


def write(path: Path, lines: list[str], chance: random.Random) -> None:
    body = b"".join(line.encode() + chance.choice([b"\n", b"\r\n"]) for line in lines)
    if lines[-1] and chance.random() < 0.3:
        body = body.removesuffix(b"\n").removesuffix(b"\r")
    path.write_bytes(chance.choice([b"", BOM]) + body)


def test_pairs_of_hostile_files_never_shift(tmp_path: Path) -> None:
    chance = random.Random(5)
    read = refused = naive = 0
    for number in range(300):
        lines = [(hostile_line(chance), hostile_line(chance)) for _ in range(chance.randrange(1, 30))]
        paths = tmp_path / f"{number}.source", tmp_path / f"{number}.target"
        sides = [[pair[side] for pair in lines] for side in (0, 1)]
        fault = chance.randrange(4)
        if fault == 1:
            sides[chance.randrange(2)].insert(chance.randrange(len(lines)), "one more")
        for path, side in zip(paths, sides, strict=True):
            write(path, side, chance)
        if fault == 2:
            spoiled = bytearray(paths[0].read_bytes())
            spoiled.insert(chance.randrange(3, len(spoiled) + 1) if len(spoiled) > 3 else 0, 0xFF)
            paths[0].write_bytes(spoiled)
        try:
            source, target = Lines(paths[0]), Lines(paths[1])
            require_pairs(source, target)
        except TextError:
            refused += 1
            continue
        assert fault not in (1, 2)
        assert list(zip(source, target, strict=True)) == lines
        naive += len("\n".join(sides[0]).splitlines()) != len("\n".join(sides[1]).splitlines())
        read += 1
    assert read > 50
    assert refused > 100
    assert naive > 20  # files whose pairs a reader that ends lines elsewhere would shift


def test_lines_are_found_in_every_block(tmp_path: Path) -> None:
    chance = random.Random(2)
    # Characters of 2, 3 and 4 bytes, which the borders of blocks cut.
    written = [chance.choice("é€😀") * chance.randrange(120) for _ in range(30_000)]
    path = tmp_path / "long.txt"
    body = b"".join(line.encode() + chance.choice([b"\n", b"\r\n"]) for line in written)
    path.write_bytes(BOM + body)
    lines = Lines(path)
    assert len(body) > 3 << 20
    assert list(lines) == written
    assert int(lines.lengths.sum()) == len(body)
    with pytest.raises(IndexError):
        lines[len(lines)]


def test_only_the_line_end_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"a\r\r\n \t\r\n\n\r\n\nb\r")
    assert list(Lines(path)) == ["a\r", " \t", "", "", "", "b\r"]


def test_the_fingerprint_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(BOM + b"abc\r\n")
    lines = Lines(path)
    assert lines.size == 8
    assert lines.sha256 == "c3199f17595cd7b59cea561d9cb96f204ef903c38b1b9cb4a50b7e68d286f675"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (BOM, "empty"),
        ("Übung".encode("utf-16"), "UTF-16"),
        ("Übung macht den Meister.\n".encode("utf-16-le") * 9, "UTF-16"),
        ("Übung macht den Meister.\n".encode("utf-16-be") * 9, "UTF-16"),
        ("नमस्ते दुनिया।\n".encode("utf-16-le") * 9, "UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "binary"),
        (b"\0" * 4096, "binary"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip"),
        (b"PK\x03\x04\x14\0" + b"\xa5" * 900, "zip"),
    ],
)
def test_what_is_not_text_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    error = refusal(path)
    assert what in error.what
    assert error.where == str(path)


def test_utf_16_says_which(tmp_path: Path) -> None:
    for order in ("LE", "BE"):
        path = tmp_path / order
        path.write_bytes("a plain line\n".encode(f"utf-16-{order}") * 9)
        assert f"-f UTF-16{order} " in refusal(path).hint


@pytest.mark.parametrize("lines_before", [0, 3, 40_000])  # the last is some blocks into the file
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_bad_byte_has_its_place(tmp_path: Path, lines_before: int, ending: str) -> None:
    path = tmp_path / "bad.txt"
    good = ("Grüße aus dem schönen Norden, wo der Wind weht" + ending).encode()
    path.write_bytes(BOM + good * lines_before + "né".encode() + b"\xe9 rest\n" + good)
    error = refusal(path)
    assert "0xE9" in error.what
    assert error.where == f"{path}:{lines_before + 1}, byte 4"


def test_a_bad_byte_at_a_block_border_and_a_character_cut_by_the_end(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    line = b"x" * 1023 + b"\n"
    path.write_bytes(line * 1023 + b"x" * 1023 + b"\xe2\x82\n")  # the first byte is the last of its block
    assert refusal(path).where == f"{path}:1024, byte 1024"
    path.write_bytes(b"fine\nfi\xe2\x82")
    assert refusal(path).where == f"{path}:2, byte 3"


def test_a_surrogate_written_as_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine\n\xed\xa0\x80\n")
    assert refusal(path).where == f"{path}:2, byte 1"


def test_a_line_too_long_is_refused_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"short\n" * 7 + b"x" * 10_000_000 + b"\nshort\n")
    tracemalloc.start()
    error = refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.where == f"{path}:8"
    assert peak < 6_000_000
    path.write_bytes(b"x" * (LONGEST_LINE - 1) + b"\n" + b"y" * LONGEST_LINE)
    assert [len(line) for line in Lines(path)] == [LONGEST_LINE - 1, LONGEST_LINE]
    path.write_bytes(b"\n" + b"y" * (LONGEST_LINE + 1))
    assert refusal(path).where == f"{path}:2"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\n")
    assert "train.en" in refusal(tmp_path / "train.eng").hint
    assert "no such file" in refusal(tmp_path / "nowhere" / "train.en").what
    assert "not a file" in refusal(tmp_path).what


def test_a_file_that_shrinks_under_us_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"line\n" * 10_000)
    lines = Lines(path)
    path.write_bytes(b"line\n")
    with pytest.raises(TextError, match="changed"):
        lines[9_000]


def test_unequal_files_say_where_they_part(tmp_path: Path) -> None:
    chance = random.Random(3)
    sentences = [" ".join(["word"] * chance.randrange(2, 30)) for _ in range(4000)]
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    for lost in ([0], [17], [2500], [3999], [1000, 1001, 3000], list(range(600, 640))):
        kept = [line.replace("word", "Wörter") for number, line in enumerate(sentences) if number not in lost]
        source.write_text("\n".join(sentences))
        target.write_text("\n".join(kept))
        with pytest.raises(TextError) as caught:
            require_pairs(Lines(source), Lines(target))
        assert "a.en has 4,000 lines" in caught.value.what
        assert f"a.de has {len(kept):,}" in caught.value.what
        found = re.match(r"near line ([\d,]+) of", caught.value.where)
        assert found
        assert abs(int(found[1].replace(",", "")) - (lost[0] + 1)) <= 3
        with pytest.raises(TextError, match="a.de has"):
            require_pairs(Lines(target), Lines(source))


def test_documents(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(BOM + b" \r\n\n\nOne\r\nstill one\r\n \t\r\nTwo\rtwo\n\n\nThree")
    lines = Lines(path)
    assert list(Documents(lines, "none")) == [" \n\n\nOne\nstill one\n \t\nTwo\rtwo\n\n\nThree"]
    assert list(Documents(lines, "line")) == list(lines)
    assert list(Documents(lines, "blank")) == ["One\nstill one", "Two\rtwo", "Three"]
    path.write_bytes(b"\n \n\n")
    with pytest.raises(TextError, match="blank lines only"):
        Documents(Lines(path), "blank")
