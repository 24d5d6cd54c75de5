"""The log: a row is there or not, whatever was torn before it, and a cut leaves exactly what came before."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.disk import Log

ROWS = st.lists(
    st.dictionaries(
        st.text(max_size=4).filter(lambda key: key != "step"),
        st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5) | st.none() | st.integers(),
        max_size=3,
    ),
    min_size=1,
    max_size=6,
)


def write(folder, rows):
    log = Log(folder / "log.jsonl")
    log.path.unlink(missing_ok=True)
    for step, row in enumerate(rows):
        log.append(step, row)
    return log, [{"step": step, **row} for step, row in enumerate(rows)]


@settings(max_examples=100, deadline=None, database=None)
@given(rows=ROWS, data=st.data())
def test_torn_anywhere(rows, data, tmp_path_factory):
    log, expected = write(tmp_path_factory.getbasetemp(), rows)
    whole = log.path.read_bytes()
    assert [json.loads(line) for line in whole.decode().split("\n")[:-1]] == expected == log.rows()
    size = data.draw(st.integers(0, len(whole)), label="size")
    garbage = data.draw(st.sampled_from([b"", b"\0" * 9, b"\xff\r", b"{"]), label="garbage")
    log.path.write_bytes(whole[:size] + garbage)
    survivors = expected[: whole[:size].count(b"\n")]
    assert log.rows() == survivors
    if data.draw(st.booleans(), label="append"):
        log.append(99, {"loss": 1.5})
        survivors = [*survivors, {"step": 99, "loss": 1.5}]
        assert log.path.read_bytes().count(b"\n") == len(survivors)
    last = data.draw(st.integers(-1, len(rows)), label="last")
    is_torn = not log.path.read_bytes().endswith(b"\n") and log.path.stat().st_size > 0
    kept = [row for row in survivors if row["step"] <= last]
    assert log.cut_after(last) >= len(survivors) - len(kept) + is_torn
    assert log.rows() == kept
    assert log.path.read_bytes() == b"".join(line for line in whole.splitlines(keepends=True)[: len(kept)] if kept)


def test_a_cut_keeps_every_byte_before_it(tmp_path):
    log, _ = write(tmp_path, [{"loss": 1 / 3, "said": "é\u2028"}] * 10)
    before = log.path.read_bytes().splitlines(keepends=True)
    assert log.cut_after(9) == 0
    assert log.path.read_bytes().splitlines(keepends=True) == before
    assert log.cut_after(4) == 5
    assert log.path.read_bytes().splitlines(keepends=True) == before[:5]
    log.append(5, {"loss": 2.0})
    assert [row["step"] for row in log.rows()] == [0, 1, 2, 3, 4, 5]


def test_unreadable_lines_in_the_middle_are_counted_and_cut(tmp_path):
    log, expected = write(tmp_path, [{"loss": 1.0}] * 3)
    lines = log.path.read_bytes().splitlines(keepends=True)
    odd = [b"\0\0\0\n", b"[1]\n", b'{"loss": 2.0}\n', b'{"step": "7"}\n', b"\xff\n", b"[" * 9_999 + b"\n"]
    log.path.write_bytes(lines[0] + b"".join(odd) + lines[1] + lines[2])
    assert log.rows() == expected
    assert log.cut_after(2) == len(odd)
    assert log.path.read_bytes() == b"".join(lines)


def test_no_log_yet(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    assert log.rows() == []
    assert log.cut_after(0) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_json_lacks_leaves_the_log_as_it_was(tmp_path):
    log, expected = write(tmp_path, [{"loss": 1.0}])
    with pytest.raises(ValueError, match="JSON"):
        log.append(1, {"loss": float("nan")})
    assert log.rows() == expected
