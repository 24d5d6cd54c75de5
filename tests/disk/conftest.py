"""What the tests of the disk share."""

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def scratch():
    """A folder in memory where the machine has one: a thousand pushes to a busy disk would take minutes."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        yield Path(folder)
