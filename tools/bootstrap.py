"""Make the environment in .venv that every other command takes, or see in a moment that it is ready.

    python3 tools/bootstrap.py                  what it takes to use, test and check Leftward
    python3 tools/bootstrap.py --extra bench    and what the benchmarks compare it with

LEFTWARD_TORCH names the torch to install; without it, the choice made last time stands:
    cpu       the CPU build, about 200 MB (the default; on macOS the index's own build, which is one)
    auto      the index's own build where there is an NVIDIA driver, else cpu
    default   the index's own build, on Linux with several GB of CUDA
    system    none: the one that the Python in use already has
LEFTWARD_TORCH_INDEX is where to look for the CPU build when the configured package index lacks it.

Only the standard library, in words that Python 3.7 can read: an old Python must be able to say what it lacks.
"""

import argparse
import configparser
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

PYTHONS = ("3.14", "3.13", "3.12", "3.11")  # newest first: those the torch of constraints.txt is built for
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_PROGRAM = "https://bootstrap.pypa.io/pip/pip.pyz"

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = ROOT / ".venv/.ready"  # written last: an environment without one is half-made


class Unable(Exception):
    """Why there is no environment and what to do about it, in one sentence."""


class Unfit(Unable):
    """The same, but with another Python it may go well."""


class Failed(Exception):
    """What a command that failed has said."""


def main(words=None):
    """Do what the command line asks; the exit code."""
    try:
        extras = asked_extras(words)
        with alone():
            bootstrap(chosen_torch(), extras)
        return 0
    except Unable as reason:
        code, sentence = 1, str(reason)
    except (Failed, OSError) as error:
        code, sentence = 1, explanation(str(error))
    except KeyboardInterrupt:
        code, sentence = 130, "Stopped; the next run begins anew."
    sys.stdout.flush()
    print(sentence, file=sys.stderr)
    return code


def bootstrap(torch, extras):
    """Make .venv, or bring it up to date, or find that there is nothing to do."""
    started = time.perf_counter()
    before = read_stamp()
    extras = sorted({"dev", *extras, *before.get("extras", [])})
    if not before or before != stamp(torch, extras):
        can_stay = before and (before.get("torch"), before.get("python")) == (torch, python_version())
        with contextlib.suppress(FileNotFoundError):
            STAMP.unlink()
        if can_stay:
            with step("torch"):
                install_torch(torch, before["python"].split()[0])
        else:
            make_environment(torch)
        names = ",".join(extras)
        with step(f"leftward[{names}]"):
            # As a variable and not with -c, so that what builds the package is held to its version too.
            held = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), constraints(torch))
            run(PYTHON, "-m", "pip", "install", "-e", f".[{names}]", variables=held)
        STAMP.write_text(json.dumps(stamp(torch, extras)), encoding="utf-8")
    print(f"ready in {time.perf_counter() - started:.1f} s: {PYTHON.relative_to(ROOT)}, torch: {torch}")


def read_stamp():
    """What the last complete set-up wrote, or nothing."""
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def stamp(torch, extras):
    """Everything an environment depends on: when any of it changes, .venv has to be mended."""
    # Below its first [tool] table, pyproject.toml speaks to linters and tests, which install nothing.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    parts = [
        str(ROOT).encode(),
        project.encode(),
        (ROOT / "constraints.txt").read_bytes(),
        Path(__file__).read_bytes(),
    ]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return {"torch": torch, "extras": extras, "python": python_version(), "files": digest}


def python_version():
    """What the Python in .venv calls itself: its link may lead to another one by now, or nowhere."""
    try:
        return run(PYTHON, "-c", "import sys; print(sys.version)").strip()
    except (Failed, OSError):
        return ""


def make_environment(torch):
    """A new .venv with pip and torch, by the newest Python that can have them."""
    for name, interpreter, is_last in interpreters():
        try:
            with step(f"Python {name}"):
                system = ["--system-site-packages"] if torch == "system" else []
                run(interpreter, "-m", "venv", "--clear", "--without-pip", *system, STAMP.parent)
            with step("pip"):
                install_pip(name)
            with step("torch"):
                install_torch(torch, name)
            return
        except Unfit as refusal:
            if is_last:
                raise
            print(f"  {refusal} Trying an older Python.")


def interpreters():
    """The Pythons that will do, newest first: version in two numbers, path, whether it is the last."""
    # From within an environment take the Python it was made by, for .venv itself is about to be cleared.
    ask = "import sys as s; print('%d.%d' % s.version_info[:2], getattr(s, '_base_executable', s.executable))"
    found = {}
    for command in [sys.executable, *("python" + name for name in PYTHONS)]:
        with contextlib.suppress(Failed, OSError, ValueError):  # no such name, or a stub that runs nothing
            name, interpreter = run(command, "-c", ask).strip().split(" ", 1)
            found.setdefault(name, interpreter)
    fitting = [name for name in PYTHONS if name in found]
    if not fitting:
        raise Unable(
            f"Leftward needs Python {PYTHONS[-1]} to {PYTHONS[0]} and found only {sys.version.split()[0]}: "
            f"install one of them so that its name, such as python{PYTHONS[1]}, is on PATH."
        )
    return [(name, found[name], name == fitting[-1]) for name in fitting]


def install_pip(name):
    """Put pip into the new environment, also where the system left out the module that does so."""
    try:
        run(PYTHON, "-m", "ensurepip", "--default-pip")
        return
    except Failed as failure:
        if disk_trouble(str(failure)):
            raise
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(PYTHON, fetch_pip(Path(folder)), "install", "pip")
        except (Failed, OSError) as failure:
            if disk_trouble(str(failure)):
                raise
            raise Unfit(
                f"Python {name} came without pip and none could be fetched: install what brings it, "
                f"on Debian and Ubuntu with 'apt install python{name}-venv'."
            ) from failure


def fetch_pip(folder):
    """Pip as a file that Python can run: the newest wheel of a configured index, else its makers' program."""
    for index in told_to_pip("index-url") + told_to_pip("extra-index-url"):
        page = index.rstrip("/") + "/pip/" + ("index.html" if index.startswith("file:") else "")
        with contextlib.suppress(OSError, ValueError):
            links = re.findall(r'href="([^"]*/pip-([\d.]+)-py3-none-any\.whl[^"]*)"', fetch(page).decode())
            link, _ = max(links, key=lambda found: [int(number) for number in found[1].split(".")])
            address, _, digest = urllib.parse.urljoin(page, link).partition("#sha256=")
            wheel = folder / address.rpartition("/")[2]
            wheel.write_bytes(fetch(address, digest))
            return wheel / "pip"
    program = folder / "pip.pyz"
    program.write_bytes(fetch(PIP_PROGRAM))
    return program


def fetch(address, digest=""):
    """The bytes at an address, and none but those promised."""
    with urllib.request.urlopen(address, timeout=20) as answer:
        content = answer.read()
    if digest and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{address} is not what its index promised")
    return content


def told_to_pip(option):
    """What the user told pip, when there is no pip to ask: in its variable, else in its files."""
    told = os.environ.get("PIP_" + option.upper().replace("-", "_"))
    if told is None:
        files = configparser.RawConfigParser()
        home = Path.home()
        with contextlib.suppress(configparser.Error):
            files.read(["/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"])
            files.read(os.environ.get("PIP_CONFIG_FILE", os.devnull))
        told = files.get("global", option, fallback="")
    return told.split()


def chosen_torch():
    """Which torch the environment shall have: what the user says, else what it has, else the CPU build."""
    choice = os.environ.get("LEFTWARD_TORCH") or read_stamp().get("torch") or "cpu"
    if choice == "auto":
        return "default" if shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia") else "cpu"
    if choice not in ("cpu", "default", "system"):
        raise Unable(f"LEFTWARD_TORCH is {choice!r}; it can be cpu, auto, default or system.")
    return choice


def install_torch(torch, name):
    """Install torch first and alone, so that nothing after it brings another build."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    version = re.search(r"^torch==(\S+)", pins, re.M).group(1)
    if torch == "system":
        if "torch" not in installed():
            raise Unfit(f"LEFTWARD_TORCH is system, but Python {name} has no torch: choose cpu or default.")
    elif torch == "default" or sys.platform == "darwin":
        if not has_installed(f"torch=={version}"):
            raise Unfit(f"The package index has no torch {version} for Python {name}: take another Python.")
    else:
        # The local version in full: an index that has only CUDA builds refuses it at once and sends nothing.
        exact = f"torch=={version}+cpu"
        index = os.environ.get("LEFTWARD_TORCH_INDEX") or TORCH_INDEX
        if not has_installed(exact) and not has_installed(exact, index):
            raise Unfit(
                f"No CPU build of torch {version} for Python {name} was found: name an index that has one in "
                "LEFTWARD_TORCH_INDEX, or take the CUDA build, several GB, with LEFTWARD_TORCH=default."
            )


def has_installed(what, second_index=""):
    """Install one thing without its needs; False where there is none."""
    where = ["--index-url", second_index, "--retries", "2"] if second_index else []
    try:
        run(PYTHON, "-m", "pip", "install", "--no-deps", what, *where)
    except Failed as failure:
        said = str(failure)
        # A second index out of reach is one that has none; without the first, nothing else would come.
        if "No matching distribution" not in said or (network_trouble(said) and not second_index):
            raise
        return False
    return True


def constraints(torch):
    """The file that holds every version, from the repository; what the system brought keeps its own."""
    if torch != "system":
        return "constraints.txt"
    have = installed()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [pin for pin in pins if pin.partition("==")[0].lower() not in have]
    loose = STAMP.with_name("constraints.txt")
    loose.write_text("\n".join([*kept, "torch==" + have["torch"], ""]), encoding="utf-8")
    return str(loose.relative_to(ROOT))  # for pip splits a list of these files at spaces


def installed():
    """The version of every distribution that the environment can see."""
    ask = "from importlib.metadata import distributions as all_of; import json; "
    ask += "print(json.dumps({one.metadata['Name'].lower(): one.version for one in all_of()}))"
    return json.loads(run(PYTHON, "-c", ask))


def run(*command, variables=None):
    """Run a command in the repository; what it said, which is shown to nobody unless it fails."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=str(ROOT),
        env={**os.environ, **quiet, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        raise Failed(done.stdout)
    return done.stdout


def explanation(said):
    """Why something failed and what to do, in one sentence, from what it said."""
    lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines[-1:]
    return disk_trouble(said) or network_trouble(said) or f"The set-up failed: {errors[0]}"


def disk_trouble(said):
    """The sentence for a disk that takes no more, or nothing when it was something else."""
    if re.search(r"\[Errno (28|122)\]|No space left|No usable temporary directory", said):
        places = filter(os.path.isdir, [str(ROOT), os.environ.get("TMPDIR", "/tmp")])
        free = " and ".join(f"{place} has {shutil.disk_usage(place).free / 1e9:.1f} GB" for place in places)
        return f"The disk is full: .venv takes about 1.2 GB, and as much again for a moment, but {free} free."
    if re.search(r"\[Errno (1|13|30)\]", said):
        return f"No permission to write: ask for it in {ROOT}, or work in a copy that is your own."
    return ""


def network_trouble(said):
    """The sentence for a package index that does not answer, or nothing when it was something else."""
    if "Retrying (Retry(" in said:
        return "No package index answers: connect to the network, or name one within reach in PIP_INDEX_URL."
    return ""


def asked_extras(words):
    """The extras named on the command line."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = re.findall(r"^([\w-]+) = \[", table, re.M)
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--extra", action="append", choices=known, default=[], help="install this extra too")
    return parser.parse_args(words).extra


@contextlib.contextmanager
def step(what):
    """Say what is being done and, when it is done, how long it took."""
    started = time.perf_counter()
    print(f"{what:24}", end="", flush=True)
    try:
        yield
    except BaseException:
        print("  failed")
        raise
    print(f"{time.perf_counter() - started:6.1f} s")


@contextlib.contextmanager
def alone():
    """Let a second set-up of the same folder wait, for two at once would wreck each other."""
    try:
        import fcntl
    except ImportError:  # not to be had on Windows
        yield
        return
    with open(__file__) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this folder", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
