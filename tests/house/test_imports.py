"""Who may import whom, what a name may be, and what is loaded when nobody asked for it."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath

import pytest

# Top to bottom. A part may import what stands on lower lines; neighbours on a line do not know each other.
LAYERS = [
    ["cli"],
    ["serve", "demo"],
    ["api"],
    ["explain"],
    ["auditing", "convert"],
    ["training", "decoding"],
    ["checkpoint", "metrics", "machine"],
    ["text", "model", "draw"],
    ["packed", "disk"],
    ["wishes", "tables"],
    ["settings", "console", "flags"],
    ["errors"],
]
HEIGHT = {part: -line for line, parts in enumerate(LAYERS) for part in parts}
PROMISED = {"load", "train", "translate", "generate", "evaluate", "score", "audit", "look"}
SAYS_NOTHING = {"utils", "helpers", "common", "misc", "base"}
WITHOUT_TORCH = ["__init__", "settings", "tables", "wishes", "flags", "console", "errors", "cli"]


def part_of(path):
    """The part of the house a module belongs to: "model" for "model/sight.py", "disk" for "disk.py"."""
    return PurePosixPath(path).with_suffix("").parts[0]


def imported_parts(path, text):
    """Line and name of every part of the package that a module imports, wherever in the module it does so."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = ["leftward", *PurePosixPath(path).parent.parts]
            above = folder[: len(folder) - node.level + 1] if node.level else []
            stem = ".".join([*above, *filter(None, [node.module])])
            modules = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            package, *inner = module.split(".")
            if package == "leftward":
                yield node.lineno, inner[0] if inner else ""


def breaches_of_layers(path, text):
    """Every import of a module that the table does not allow, in words."""
    own = part_of(path)
    if own == "__init__":  # the promised names, whose home is anywhere
        return
    if own not in HEIGHT and own != "textbook":
        yield f"{path}: {own} has no line in the table of who may import whom"
        return
    for line, other in imported_parts(path, text):
        if own == "textbook" or other == "textbook":
            yield f"{path}:{line}: textbook stands apart: it imports nothing of ours and nothing of ours imports it"
        elif other not in HEIGHT:
            yield f"{path}:{line}: imports {other or 'leftward itself'}, which is no part of the house"
        elif other != own and HEIGHT[other] >= HEIGHT[own]:
            yield f"{path}:{line}: {own} must not know {other}"


def breaches_of_names(paths):
    """Every file or folder whose name is promised to a function, taken already, or says nothing."""
    paths = [PurePosixPath(path) for path in paths]
    names = {part: path for path in paths for part in path.with_suffix("").parts}
    for name in sorted(PROMISED & set(names)):
        yield f"{names[name]}: leftward.{name} is a promised function"
    for name in sorted(SAYS_NOTHING & set(names)):
        yield f"{names[name]}: {name} is no answer to the question of what is in it"
    for name, count in Counter(path.name for path in paths if path.name != "__init__.py").items():
        if count > 1:
            yield f"{name} is the name of {count} files"


def test_imports_go_down_only(sources):
    assert not [breach for path, text in sources.items() for breach in breaches_of_layers(path, text)]


def test_names_answer_where_is_what(sources):
    assert not list(breaches_of_names(sources))


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_it_loads_without_torch(name, sources):
    if f"{name}.py" not in sources:
        pytest.skip(f"there is no {name}.py yet")
    module = "leftward" if name == "__init__" else f"leftward.{name}"
    said = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert said.stdout == "False\n", said.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("model/sight.py", "from leftward.decoding import greedy"),
        ("model/sight.py", "import leftward.training.loop"),
        ("model/sight.py", "from leftward import api"),
        ("model/sight.py", "from ..decoding.greedy import choose"),
        ("model/sight.py", "from .. import text"),
        ("model/sight.py", "def late():\n    from leftward.text.stream import Stream"),
        ("decoding/greedy.py", "from leftward.training.loop import run"),
        ("auditing/zoo/faults.py", "import leftward.convert"),
        ("settings.py", "import leftward.packed"),
        ("disk.py", "from leftward.packed import Packed"),
        ("packed.py", "import leftward"),
        ("packed.py", "from leftward import train"),
        ("model/layers.py", "from leftward.textbook import attention"),
        ("textbook.py", "from leftward.model.sight import may_look"),
        ("news.py", ""),
    ],
)
def test_a_planted_import_is_found(path, text):
    assert list(breaches_of_layers(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("__init__.py", "from leftward.api import train"),
        ("model/attention.py", "from leftward.model.sight import may_look\nfrom .cache import Cache\nimport torch"),
        ("auditing/zoo/faults.py", "from leftward.model.layers import Layer\nfrom leftward.auditing import laws"),
        ("cli.py", "from leftward import errors\nfrom leftward.api import train"),
        ("textbook.py", "import torch"),
    ],
)
def test_an_honest_import_is_left_alone(path, text):
    assert not list(breaches_of_layers(path, text))


@pytest.mark.parametrize(
    "paths",
    [
        ["train/loop.py"],
        ["model/score.py"],
        ["model/utils.py"],
        ["helpers/sight.py"],
        ["model/page.py", "explain/page.py"],
    ],
)
def test_a_planted_name_is_found(paths):
    assert list(breaches_of_names(paths))
    assert not list(breaches_of_names(["model/__init__.py", "text/__init__.py", "model/sight.py"]))
