"""The set-up: what it decides, what it says when it cannot go on, and once for real."""

import ast
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/bootstrap.py"
NONE_FOUND = "ERROR: No matching distribution found for torch"
NO_ANSWER = "WARNING: Retrying (Retry(total=4)) after connection broken\n" + NONE_FOUND


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """The script as a module, over a repository of its own, with nothing told to it or to pip."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv/bin/python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv/.ready")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("PIP_", "LEFTWARD_"))]:
        monkeypatch.delenv(name)
    return module


@pytest.fixture
def commands(tool, monkeypatch):
    """Stand in for all commands: a function that says how each fares, and the list of those that were run."""
    seen = []

    def let(fare):
        def run(*words, **_):
            seen.append([str(word) for word in words])
            failure = fare(" ".join(seen[-1]))
            if failure:
                raise tool.Failed(failure)
            return "3.12 python3.12" if "-c" in words else ""

        monkeypatch.setattr(tool, "run", run)
        return seen

    return let


def test_an_old_python_can_read_it():
    ast.parse(SCRIPT.read_text("utf-8"), feature_version=(3, 7))


def test_the_cpu_build_is_asked_for_by_its_full_name_and_nothing_else(tool, commands, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("LEFTWARD_TORCH_INDEX", "https://torch.example/cpu")
    seen = commands(lambda command: NONE_FOUND if "torch.example" not in command else NO_ANSWER)
    with pytest.raises(tool.Unfit, match="LEFTWARD_TORCH=default"):
        tool.install_torch("cpu", "3.12")
    first, second = seen
    assert "torch.example" in " ".join(second) and "torch.example" not in " ".join(first)
    for words in seen:
        assert "--no-deps" in words and [word for word in words if word.startswith("torch==")][0].endswith("+cpu")


def test_without_an_index_the_next_one_is_not_asked(tool, commands):
    seen = commands(lambda _: NO_ANSWER)
    with pytest.raises(tool.Failed):
        tool.install_torch("cpu", "3.12")
    assert len(seen) == 1


def test_torch_of_the_system_is_left_alone(tool, monkeypatch):
    monkeypatch.setattr(tool, "run", lambda *_, **__: json.dumps({"torch": "2.11.0+cu130", "numpy": "2.5.2"}))
    tool.STAMP.parent.mkdir()
    held = (tool.ROOT / tool.constraints("system")).read_text().splitlines()
    assert "torch==2.11.0+cu130" in held and "torch==2.13.0" not in held
    assert not [line for line in held if line.startswith("numpy==")]
    assert [line for line in held if line.startswith("pytest==")]


@pytest.mark.parametrize(
    ("told", "driver", "before", "chosen"),
    [
        (None, False, None, "cpu"),
        (None, True, None, "cpu"),
        (None, False, "default", "default"),
        ("cpu", True, "default", "cpu"),
        ("auto", True, None, "default"),
        ("auto", False, "default", "cpu"),
        ("system", False, None, "system"),
    ],
)
def test_the_choice_of_torch(tool, monkeypatch, told, driver, before, chosen):
    if told:
        monkeypatch.setenv("LEFTWARD_TORCH", told)
    monkeypatch.setattr(shutil, "which", lambda _: "nvidia-smi" if driver else None)
    monkeypatch.setattr(os.path, "exists", lambda _: driver)
    monkeypatch.setattr(tool, "read_stamp", lambda: {"torch": before} if before else {})
    assert tool.chosen_torch() == chosen


def test_an_unknown_torch_is_refused(tool, monkeypatch):
    monkeypatch.setenv("LEFTWARD_TORCH", "gpu")
    with pytest.raises(tool.Unable, match="cpu, auto, default or system"):
        tool.chosen_torch()


def test_the_newest_python_that_answers_comes_first(tool, monkeypatch):
    answers = {"python3.13": "3.13 made/python", "python3.11": "3.11 other/python", sys.executable: "3.9 old/python"}

    def run(command, *_):
        if command == "python3.14":
            raise tool.Failed("a stub that runs nothing")
        if command not in answers:
            raise FileNotFoundError(command)
        return answers[command]

    monkeypatch.setattr(tool, "run", run)
    assert tool.interpreters() == [("3.13", "made/python", False), ("3.11", "other/python", True)]
    answers["python3.13"] = answers["python3.11"] = "3.10 old/python"
    with pytest.raises(tool.Unable, match=r"needs Python 3.11 to 3.14"):
        tool.interpreters()


def test_an_older_python_is_tried_when_the_newest_cannot_have_torch(tool, commands, monkeypatch, capsys):
    monkeypatch.setattr(tool, "interpreters", lambda: [("3.14", "python3.14", False), ("3.12", "python3.12", True)])
    made = []
    monkeypatch.setattr(tool, "install_pip", made.append)

    def fare(command):
        return NONE_FOUND if "torch==" in command and made[-1] == "3.14" else ""

    seen = commands(fare)
    tool.make_environment("cpu")
    assert made == ["3.14", "3.12"]
    assert [words[0] for words in seen if "venv" in words] == ["python3.14", "python3.12"]
    assert "Trying an older Python." in capsys.readouterr().out


def test_pip_comes_from_the_configured_index_and_only_whole(tool, tmp_path, monkeypatch):
    def publish(index, promised):
        files, page = tmp_path / index / "files", tmp_path / index / "simple/pip/index.html"
        files.mkdir(parents=True)
        page.parent.mkdir(parents=True)
        lines = []
        for version in ("9.0", "26.10.1", "26.9", "27.0b1"):
            name = f"pip-{version}-py3-none-any.whl"
            (files / name).write_bytes(version.encode())
            digest = hashlib.sha256(promised or version.encode()).hexdigest()
            lines.append(f'<a href="../../files/{name}#sha256={digest}">{name}</a>')
        page.write_text("\n".join(lines))
        return (tmp_path / index / "simple").as_uri()

    damaged, whole = publish("damaged", b"something else"), publish("whole", None)
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(f"[global]\nextra-index-url = {damaged}\n  {whole}\n")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "absent").as_uri())
    (tmp_path / "here").mkdir()
    program = tool.fetch_pip(tmp_path / "here")
    assert program.name == "pip" and program.parent.read_bytes() == b"26.10.1"
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", damaged)
    monkeypatch.setattr(tool, "PIP_PROGRAM", (tmp_path / "whole/files/pip-9.0-py3-none-any.whl").as_uri())
    assert tool.fetch_pip(tmp_path / "here").read_bytes() == b"9.0"


def test_without_any_pip_the_package_to_install_is_named(tool, commands, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "PIP_PROGRAM", (tmp_path / "absent.pyz").as_uri())
    commands(lambda _: "No module named ensurepip")
    with pytest.raises(tool.Unfit, match="apt install python3.12-venv"):
        tool.install_pip("3.12")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("Error: [Errno 122] Disk quota exceeded: 'x'", "disk is full"),
        ("Error: [Errno 13] Permission denied: 'x'", "No permission to write"),
        ("Error: [Errno 30] Read-only file system: 'x'", "No permission to write"),
        (NO_ANSWER, "No package index answers"),
        ("Collecting x\nERROR: x is broken\nERROR: for help visit y\n", "ERROR: x is broken"),
        ("something odd\n", "something odd"),
        ("", "nothing"),
    ],
)
def test_a_failure_is_one_sentence(tool, capsys, monkeypatch, said, sentence):
    monkeypatch.setattr(tool, "bootstrap", lambda *_: (_ for _ in ()).throw(tool.Failed(said)))
    assert tool.main([]) == 1
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1


def test_ready_is_believed_until_something_it_rests_on_changes(tool, commands, capsys):
    tool.STAMP.parent.mkdir()
    seen = commands(lambda _: "")

    def installs():
        seen.clear()
        assert tool.main([]) == 0
        return bool([words for words in seen if "-e" in words])

    def change(name, text, to):
        path = tool.ROOT / name
        assert text in path.read_text()
        path.write_text(path.read_text().replace(text, to, 1))

    tool.STAMP.write_text(json.dumps(tool.stamp("cpu", ["dev"])))
    assert not installs()
    change("pyproject.toml", "[tool.ruff.lint]", "[tool.ruff.lint] # milder")
    assert not installs()
    change("pyproject.toml", "numpy>=2", "numpy>=2.1")
    assert installs() and not installs()
    change("constraints.txt", "torch==", "# torch moves\ntorch==")
    assert installs() and not installs()
    tool.STAMP.write_text("{half a stam")
    assert installs()
    assert [words for words in seen if "--clear" in words]
    assert tool.main(["--extra", "bench"]) == 0 and tool.read_stamp()["extras"] == ["bench", "dev"]
    assert not installs()
    assert "ready in" in capsys.readouterr().out


def test_an_interrupted_set_up_is_no_traceback(tool, capsys, monkeypatch):
    monkeypatch.setattr(tool, "bootstrap", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert tool.main([]) == 130
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bare_copy_becomes_ready_and_stays_so(tmp_path):
    copy = tmp_path / "a copy"  # the space is meant: paths have them
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(path, copy)
    first = subprocess.run([sys.executable, copy / "tools/bootstrap.py"], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    started = time.perf_counter()
    again = subprocess.run([sys.executable, copy / "tools/bootstrap.py"], capture_output=True, text=True)
    assert time.perf_counter() - started < 5
    assert again.returncode == 0 and again.stdout.startswith("ready in")
    inside = [copy / ".venv/bin/python", "-c"]
    where = subprocess.run([*inside, "import leftward; print(leftward.__file__)"], capture_output=True, text=True)
    assert where.stdout.strip() == str(copy / "src/leftward/__init__.py"), where.stderr
    told = subprocess.run([*inside, "import torch; print(torch.__version__)"], capture_output=True, text=True)
    assert told.stdout.strip().endswith("+cpu") or sys.platform == "darwin"
