"""Answers of several processes become one row; a fallen competitor is named; old entries of a file stay."""

import json
import sys
from pathlib import Path

import pytest
from bench.competition import Answers, Outcome, compete, lay_out, make_row, write_results
from bench.decode_step import show as show_decoding
from bench.train_step import show as show_training

WINDOW = '{"window": {"tokens": %d, "seconds": 2.0, "other_cpu": 0.0}}'
END = '{"end": {"parameters": 7, "start_mb": 100.0, "peak_mb": %d, "losses": [9.0, 8.0, 7.0, 5.0]}}'


def answers(*tokens: int) -> Answers:
    said = Answers()
    for count in tokens:
        said.read("\n".join(["a warning of some library", WINDOW % count, END % (200 + count)]))
    return said


def test_rounds_become_one_row() -> None:
    row = make_row(answers(10, 30, 20))
    assert row.speed.rate == 10
    assert (row.peak_mb, row.model_mb) == (230, 130)
    assert row.loss == 5
    assert len(row.windows) == 3


def test_the_fallen_do_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    speak = [sys.executable, "-c", f"print({WINDOW % 10!r}); print({END % 300!r})"]
    fall = [sys.executable, "-c", "raise SystemExit('no such model')"]
    silent = [sys.executable, "-c", ""]
    outcome = compete({"fine": speak, "broken": fall, "silent": silent}, [], rounds=2)
    assert outcome.fallen == {"broken": "no such model", "silent": "exit 0 before its last line"}
    assert len(outcome.rows["fine"].windows) == 2
    assert capfd.readouterr().err.count("broken") == 1


def test_tables_are_shown_whoever_fell() -> None:
    row = make_row(answers(10, 30))
    for show in (show_training, lambda outcome: show_decoding(outcome, 64)):
        everyone = show(Outcome({"ours, float32": row, "Marian, float32": make_row(answers(5))}, {"torch": "broke"}))
        assert "4.00" in everyone
        assert "torch: broke" in everyone
        assert "4.00" not in show(Outcome({"ours, float32": row}, {}))


def test_columns_stand_straight() -> None:
    assert lay_out(["", "speed"], [["ours", "1"], ["a peer", "12"]]).splitlines() == [
        "        speed",
        "ours        1",
        "a peer     12",
    ]


def test_a_file_of_results_keeps_its_other_entries(tmp_path: Path) -> None:
    path = tmp_path / "results" / "train_step.json"
    outcome = Outcome({"ours, float32": make_row(answers(10))}, {})
    write_results(path, "tiny", {"steps": 3}, outcome)
    write_results(path, "base", {"steps": 1}, outcome)
    write_results(path, "tiny", {"steps": 4}, outcome)
    entries = json.loads(path.read_text())
    assert {entry: said["asked"]["steps"] for entry, said in entries.items()} == {"tiny": 4, "base": 1}
    assert entries["tiny"]["rows"]["ours, float32"]["windows"] == [{"tokens": 10, "seconds": 2.0, "other_cpu": 0.0}]
    assert entries["tiny"]["machine"]["cores"] >= 1
