"""The map in the README shows the house as it is.

The map is a fenced block whose first line is `src/leftward/`. Every line after it is a name, two or more spaces, and
what the thing is for; a name that ends in `/` is a folder, and what stands further to the right is in it. Lines drawn
between (`├──`) are welcome. A folder shown without its files stands for all of them; a folder shown with files shows
every one. `__init__.py` need not be shown.
"""

import re

import pytest


def map_in(readme):
    """Path and purpose of every line of the map: {"model/": "tokens to scores", "model/sight.py": ...}."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, re.M | re.S)
    [block] = [block for block in blocks if block.startswith("src/leftward/")]
    shown, folders = {}, []
    for line in block.splitlines()[1:]:
        drawn = re.match(r"([\s│├└─|`+-]*)(\S+)(?:\s\s+(.*))?$", line)
        if drawn is None:
            continue
        bars, name, purpose = drawn.groups()
        folders = [(column, folder) for column, folder in folders if column < len(bars)]
        path = "".join(folder for _, folder in folders) + name
        shown[path] = purpose or ""
        if name.endswith("/"):
            folders.append((len(bars), name))
    return shown


def breaches_of_map(shown, paths):
    """Everything the map shows that is not there, and everything there that it does not show."""
    for path, purpose in shown.items():
        if not purpose:
            yield f"{path} is shown without saying what it is for"
        if path not in paths and not (path.endswith("/") and any(other.startswith(path) for other in paths)):
            yield f"{path} is shown and does not exist"
    for path in sorted(path for path in paths if not path.endswith("__init__.py")):
        folder, slash, _ = path.rpartition("/")
        if any(other != folder + slash and other.startswith(folder + slash) for other in shown):
            is_missing = path not in shown
        else:
            is_missing = not any(other.endswith("/") and path.startswith(other) for other in shown)
        if is_missing:
            yield f"{path} is not shown"


def test_the_map_shows_the_house(root, sources):
    assert not list(breaches_of_map(map_in((root / "README.md").read_text("utf-8")), set(sources)))


PATHS = {"__init__.py", "errors.py", "model/__init__.py", "model/sight.py", "model/cache.py", "text/order.py"}
WHOLE = """
# Leftward

```sh
make test
```

```
src/leftward/
├── errors.py      the family of errors
├── model/         tokens to scores
│   ├── sight.py   who may look at whom
│   └── cache.py   what was seen
└── text/          words to tokens
```
"""


def test_a_map_is_read():
    shown = map_in(WHOLE)
    assert shown["model/"] == "tokens to scores"
    assert shown["model/sight.py"] == "who may look at whom"
    assert not list(breaches_of_map(shown, PATHS))
    plain = re.sub("[│├└─]", " ", WHOLE)
    assert map_in(plain) == shown
    by_path = "```\nsrc/leftward/\nerrors.py  errors\nmodel/sight.py  sight\nmodel/cache.py  cache\ntext/  words\n```\n"
    assert not list(breaches_of_map(map_in(by_path), PATHS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sight.py   who", "sights.py  who"),
        ("│   └── cache.py   what was seen\n", ""),
        ("├── errors.py      the family of errors\n", ""),
        ("└── text/          words to tokens\n", ""),
        ("sight.py   who may look at whom", "sight.py"),
        ("└── text/ ", "└── texts/"),
    ],
)
def test_a_planted_error_in_the_map_is_found(old, new):
    assert old in WHOLE
    assert list(breaches_of_map(map_in(WHOLE.replace(old, new)), PATHS))
