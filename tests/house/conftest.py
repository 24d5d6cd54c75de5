"""What the tests of the house look at: the files of the package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> dict[str, str]:
    """The text of every module, by its path from the package: "model/sight.py"."""
    package = ROOT / "src/leftward"
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    assert "errors.py" in texts
    return texts
