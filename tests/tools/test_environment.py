"""The environment the tests run in is the one that was promised: the CPU build, and the versions we hold."""

import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAMP = ROOT / ".venv/.ready"


def plain(name):
    """The one spelling of a name that has several."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed():
    """The version of everything in this environment."""
    return {plain(one.metadata["Name"]): one.version for one in distributions()}


@pytest.fixture(autouse=True)
def _ours():
    if Path(sys.prefix).resolve() != STAMP.parent.resolve() or not STAMP.exists():
        pytest.skip("these tests run in another environment than .venv")
    if json.loads(STAMP.read_text("utf-8"))["torch"] != "cpu":
        pytest.skip("this environment has another torch than the CPU build, on purpose")


def test_no_cuda_package_slipped_in():
    assert not [name for name in installed() if name.startswith(("nvidia", "cuda", "triton"))]


def test_every_version_is_held():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    held = {plain(name): version for name, version in pins.items()}
    ours = {name: version.partition("+cpu")[0] for name, version in installed().items()}
    loose = {name: version for name, version in ours.items() if held.get(name) != version}
    assert not set(loose) - {"leftward", "pip"}, "delete .venv and set it up anew, or renew constraints.txt"
