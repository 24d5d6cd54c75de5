"""The facts without which a figure means nothing: which machine, which versions, which commit, when."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")  # decide which kernels multiply matrices
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def describe_machine() -> dict[str, object]:
    """Everything about here and now that a result must say."""
    flags = _processor("flags").split()
    return {
        "processor": _processor("model name") or platform.machine(),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "commit": _git("describe", "--always", "--dirty", "--abbrev=10"),
        "date": datetime.date.today().isoformat(),
    }


def name_machine() -> str:
    """A name for files, such as amd-epyc-2-cores."""
    words = f"{_processor('model name') or platform.machine()} {os.cpu_count()} cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _processor(field: str) -> str:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == field), "")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*words: str) -> str:
    answer = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True)
    return answer.stdout.strip() or "no commit"
