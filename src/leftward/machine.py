"""What the machine has: facts that hold from run to run, and no timings."""

from __future__ import annotations

import os
import platform
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch

from leftward.errors import DeviceError, SettingsError
from leftward.model.precision import computing_in


def count_cores() -> int:
    """The processor cores this process may use, or fewer where OMP_NUM_THREADS says so.

    >>> count_cores() > 0
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isdecimal() and int(asked) > 0 else cores


def settle_device(wished: str | None) -> str:
    """A device that is there: the one wished for, or a GPU, or the processor.

    >>> settle_device("cpu")
    'cpu'
    """
    if wished is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wished not in there:
        raise SettingsError(f"there is no device called {wished}", where="--device", hint="take cpu, cuda or mps")
    if not there[wished]:
        raise DeviceError(f"this machine has no {wished} device", where="--device", hint="leave it out, or take cpu")
    return wished


def require_memory(size: int, device: str) -> None:
    """Refuse what needs more bytes than a device has.

    >>> require_memory(10**20, "cpu")
    Traceback (most recent call last):
    leftward.errors.DeviceError: training needs 93,132,257,462 GiB for the weights alone, and this machine has ...
    ...
    """
    there = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else _memory()
    if there and size > there:
        raise DeviceError(
            f"training needs {size / 2**30:,.0f} GiB for the weights alone, and this machine has {there / 2**30:,.0f}",
            where=f"--device {device}",
            hint="take a smaller --size, or less of --layers, --width or --feed-forward",
        )


@cache
def is_medium_as_exact_as_float32() -> bool:
    """Whether torch's "medium" matrix products err no more than float32 on this processor.

    The word only allows less exact kernels: on some processors it picks another float32 kernel, which is faster.
    """
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(256, 512, generator=generator)
    right = torch.randn(512, 256, generator=generator)
    truth = left.double() @ right.double()

    def error() -> float:
        return ((left @ right).double() - truth).abs().max().item()

    plain = error()
    with computing_in("medium"):
        return error() < 4 * plain


def examine() -> dict[str, Any]:
    """What a person needs to know before training: versions, device, threads, memory, disk."""
    from importlib.metadata import version

    free = shutil.disk_usage(Path.cwd()).free
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "leftward": version("leftward"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "cores": count_cores(),
        "memory": f"{_memory() / 2**30:.0f} GiB",
        "gpu": gpu,
        "device": settle_device(None),
        "medium": "as exact as float32" if is_medium_as_exact_as_float32() else "less exact than float32",
        "here": f"{free / 2**30:.0f} GiB free, {'writable' if os.access(Path.cwd(), os.W_OK) else 'not writable'}",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
