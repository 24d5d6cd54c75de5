"""Every write to disk: a file or a folder appears whole or not at all.

New content is written under a hidden name beside the place it is meant for, pushed to the disk, and moved
there by one rename, which no crash can leave half done. A dead run leaves at worst a hidden name, which the
next run sweeps away.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from leftward.errors import CheckpointError, DiskError

Bytes = bytes | bytearray | memoryview
Result = TypeVar("Result")

HIDDEN = ".leftward-unfinished-"
LOCK = ".leftward.lock"
MANIFEST = "manifest.json"
FORMAT = 1

_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HINTS = {
    errno.ENOSPC: "free some space there, or choose a folder on another disk",
    errno.EDQUOT: "free some space there, or choose a folder on another disk",
    errno.EROFS: "choose a folder on another disk",
    errno.EIO: "this disk may be failing: choose a folder on another one",
    errno.EACCES: "choose a folder of your own, or ask the owner of this one",
    errno.EPERM: "choose a folder of your own, or ask the owner of this one",
    errno.ENOTEMPTY: "choose a new name, or empty the folder first",
}


def write_file(path: Path, content: Bytes | Iterable[Bytes]) -> None:
    """Write a file, given in one piece or in many; until the last byte is safe, its old content stands.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "a.txt"), [b"left", b"ward"])
    ...     Path(folder, "a.txt").read_bytes()
    b'leftward'
    """
    path = Path(os.path.realpath(path))  # a link stays a link: the file it names is replaced
    if os.path.exists(path) and not os.path.isfile(path):
        # A rename over /dev/null would take it from everybody on the machine.
        raise DiskError("this is not a plain file", where=str(path), hint="choose another name")
    hidden = _hidden_beside(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = _operation("open", path, partial(os.open, hidden, flags, 0o666))
        try:
            for piece in [content] if isinstance(content, Bytes) else content:
                _write(path, descriptor, piece)
            _operation("sync", path, partial(os.fsync, descriptor))
        finally:
            os.close(descriptor)
        _operation("rename", path, partial(os.rename, hidden, path))
    except BaseException:
        _forget(hidden)
        raise
    _sync(path.parent)


@contextmanager
def publish_folder(path: Path) -> Iterator[Path]:
    """Fill a hidden folder; when the block ends well, all of it appears under its name at once.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with publish_folder(Path(folder, "100")) as unfinished:
    ...         write_file(unfinished / "state", b"...")
    ...     os.listdir(Path(folder, "100"))
    ['state']
    """
    hidden = _hidden_beside(path)
    try:
        _operation("make", path, hidden.mkdir)
        yield hidden
        for inside in _operation("list", path, lambda: sorted(hidden.rglob("*"))):
            _sync(inside)
        _sync(hidden)
        _operation("rename", path, partial(os.rename, hidden, path))
    except BaseException:
        _forget(hidden)
        raise
    _sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; one that is there stays as it is.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     make_folder(Path(folder, "model", "checkpoints"))
    ...     Path(folder, "model", "checkpoints").is_dir()
    True
    """
    if not os.path.isdir(path):
        make_folder(path.parent)
        _operation("make", path, partial(path.mkdir, exist_ok=True))
        _sync(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it; under its own name it is never half there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     make_folder(Path(folder, "100"))
    ...     remove_folder(Path(folder, "100"))
    ...     os.listdir(folder)
    []
    """
    hidden = _hidden_beside(path)
    _operation("rename", path, partial(os.rename, path, hidden))
    _sync(path.parent)  # else a power loss could keep the removals that follow, and lose the rename
    _delete(hidden)


def divert(descriptor: int) -> None:
    """Let everything still written to an open file or pipe vanish: whoever read it has left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def sweep(folder: Path) -> None:
    """Delete what dead runs left unfinished in a folder; call it while holding the folder's `lock`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Path(folder, ".leftward-unfinished-0123456789abcdef").touch()
    ...     sweep(Path(folder))
    ...     os.listdir(folder)
    []
    """
    for hidden in _operation("list", folder, lambda: sorted(folder.glob(f"{HIDDEN}*"))):
        _delete(hidden)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Own a folder while the block runs; a second run is told whose it is. A killed run's lock binds nobody.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, lock(Path(folder)):
    ...     with lock(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    leftward.errors.DiskError: another run (process ...) is writing here
      where: ...
      to do: wait until it has ended, or choose another folder
    """
    path = folder / LOCK
    descriptor = _claim(path)
    try:
        # The number of a killed run may stand there.
        _operation("write", path, partial(os.ftruncate, descriptor, 0))
        _write(path, descriptor, str(os.getpid()).encode())
        yield
    finally:
        with suppress(DiskError):
            _operation("remove", path, path.unlink)
        os.close(descriptor)


@dataclass(frozen=True)
class Log:
    """A file of JSON objects, one a line, each with its `step`, that grows while a run goes on.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = Log(Path(folder, "log.jsonl"))
    ...     log.append(10, {"loss": 2.5})
    ...     log.append(20, {"loss": 2.25})
    ...     log.cut_after(10), log.rows()
    (1, [{'step': 10, 'loss': 2.5}])
    """

    path: Path

    def append(self, step: int, row: Mapping[str, Any]) -> None:
        """Add a row, which a killed process no longer loses. Numbers must be finite: JSON has no others."""
        line = json.dumps({"step": step, **row}, allow_nan=False) + "\n"
        # Opened anew for every row: after a cut, a file held open would be the old one.
        descriptor = _open(self.path, os.O_RDWR | os.O_APPEND)
        try:
            _operation("write", self.path, partial(_drop_torn_line, descriptor))
            _write(self.path, descriptor, line.encode())
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Push the rows to the disk, so that no power loss takes one that a checkpoint counts on."""
        _sync(self.path)
        _sync(self.path.parent)

    def rows(self) -> list[dict[str, Any]]:
        """Read the rows, passing over lines that a crash left unreadable."""
        return [row for row in map(_parse_row, self._lines()) if row is not None]

    def cut_after(self, step: int) -> int:
        """Cut away the rows after a step, and unreadable lines, all at once; how many lines went."""
        lines = self._lines()
        kept = [line for line in lines if (row := _parse_row(line)) is not None and row["step"] <= step]
        if len(kept) < len(lines):
            write_file(self.path, b"".join(kept))
        return len(lines) - len(kept)

    def _lines(self) -> list[bytes]:
        if not os.path.exists(self.path):
            return []
        return _operation("read", self.path, self.path.read_bytes).splitlines(keepends=True)


class Fingerprint(NamedTuple):
    """What tells one content of a file from every other."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: a fingerprint of each file, and facts about them, which are JSON values."""

    files: Mapping[str, Fingerprint]
    facts: Mapping[str, Any] = field(default_factory=dict)


def hash_file(path: Path) -> Fingerprint:
    """Read a file once for its size and SHA-256.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "a.txt"), b"abc")
    ...     hash_file(Path(folder, "a.txt"))
    Fingerprint(size=3, sha256='ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
    """
    return _operation("read", path, partial(_fingerprint, path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a folder's `manifest.json`, once its files are there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "a.txt"), b"abc")
    ...     files = {"a.txt": hash_file(Path(folder, "a.txt"))}
    ...     write_manifest(Path(folder), Manifest(files, {"step": 100}))
    ...     verify(Path(folder)).facts["step"]
    100
    """
    path = folder / MANIFEST
    try:
        content = _render(manifest)
        if _parse_manifest(path, content) != manifest:
            raise ValueError("it would not come back as it is")
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{MANIFEST} cannot hold this: {error}",
            where=str(path),
            hint="give plain file names, and facts of JSON's own kinds, none called format, files or sha256",
        ) from error
    write_file(path, content)


def read_manifest(folder: Path) -> Manifest:
    """Read what a folder says it holds, without a look at its files.

    >>> read_manifest(Path("no-such-folder"))
    Traceback (most recent call last):
    leftward.errors.CheckpointError: manifest.json is missing
      where: no-such-folder
      to do: name a folder that Leftward has written
    """
    path = folder / MANIFEST
    if not os.path.isfile(path):
        hint = "name a folder that Leftward has written"
        raise CheckpointError(f"{MANIFEST} is missing", where=str(folder), hint=hint)
    manifest = _parse_manifest(path, _operation("read", path, path.read_bytes))
    if manifest is None:
        raise _damaged(path, f"{MANIFEST} is damaged")
    return manifest


def verify(folder: Path) -> Manifest:
    """Check every file of a folder against its manifest; the first one missing or damaged is named.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_manifest(Path(folder), Manifest({"weights": Fingerprint(3, "0" * 64)}))
    ...     verify(Path(folder))
    Traceback (most recent call last):
    leftward.errors.CheckpointError: weights is missing
      where: .../weights
      to do: copy the folder again from where it came, or take another checkpoint
    """
    try:
        manifest = read_manifest(folder)
        for name, expected in manifest.files.items():
            path = folder / name
            if not os.path.isfile(path):
                raise _damaged(path, f"{name} is missing")
            if (found := hash_file(path)) != expected:
                what = f"{name} is damaged: {found.size} bytes with SHA-256 {found.sha256}, where {MANIFEST}"
                raise _damaged(path, f"{what} says {expected.size} bytes with SHA-256 {expected.sha256}")
    except DiskError as error:
        raise CheckpointError(error.what, where=error.where, hint=error.hint) from error
    return manifest


def _operation(name: str, path: Path, action: Callable[[], Result]) -> Result:
    # All that is done to the disk passes here: tests count it, make it fail, or kill the process at it.
    try:
        return action()
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "check the path, and choose another if need be")
        raise DiskError(f"cannot {name}: {error.strerror or error}", where=str(path), hint=hint) from error


def _hidden_beside(path: Path) -> Path:
    # Beside it, because a rename does not cross from one disk to another.
    return path.parent / f"{HIDDEN}{os.urandom(8).hex()}"


def _open(path: Path, flags: int) -> int:
    return _operation("open", path, partial(os.open, path, flags | os.O_CREAT, 0o666))


def _write(path: Path, descriptor: int, content: Bytes) -> None:
    rest = memoryview(content).cast("B")
    while rest:  # a disk that is nearly full takes a part
        rest = rest[_operation("write", path, partial(os.write, descriptor, rest)) :]


def _sync(path: Path) -> None:
    _operation("sync", path, partial(_push_to_disk, path))


def _push_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems keep folders safe by themselves and refuse to be asked.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for inside in _operation("list", path, lambda: sorted(path.iterdir())):
            _delete(inside)
        _operation("remove", path, path.rmdir)
    else:
        _operation("remove", path, path.unlink)


def _forget(hidden: Path) -> None:
    # What went wrong before is the news; what cannot be deleted now is swept away by the next run.
    with suppress(DiskError):
        _delete(hidden)


def _claim(path: Path) -> int:
    while True:
        descriptor = _open(path, os.O_RDWR)
        try:
            if not _operation("lock", path, partial(_is_free, descriptor)):
                owner = _operation("read", path, partial(os.pread, descriptor, 20, 0))
                raise DiskError(
                    f"another run (process {owner.decode(errors='replace')}) is writing here",
                    where=str(path.parent),
                    hint="wait until it has ended, or choose another folder",
                )
            # The last owner may have removed the file after we opened it: then ours is nobody's.
            if _operation("look", path, partial(_is_named, descriptor, path)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _drop_torn_line(descriptor: int) -> None:
    # A line that a crash cut short would swallow the next one.
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _fingerprint(path: Path) -> Fingerprint:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Fingerprint(file.tell(), digest)


def _render(manifest: Manifest) -> bytes:
    files = {name: fingerprint._asdict() for name, fingerprint in manifest.files.items()}
    content = {"format": FORMAT, **manifest.facts, "files": files}
    # The manifest vouches for itself too: a flipped bit in a step or a random state must not go unseen.
    content["sha256"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps(content, indent=2, allow_nan=False).encode()


def _parse_manifest(path: Path, content: bytes) -> Manifest | None:
    try:
        facts = json.loads(content)
        number = facts.pop("format")
        if isinstance(number, int) and number > FORMAT:
            what = f"{MANIFEST} has format {number}, and this Leftward knows formats up to {FORMAT}"
            raise CheckpointError(what, where=str(path), hint="install a newer Leftward")
        files = {name: Fingerprint(**entry) for name, entry in facts.pop("files").items()}
        del facts["sha256"]
        manifest = Manifest(files, facts)
        # Nothing passes but what we would write ourselves: no key twice, no NaN, no other spelling.
        is_ours = content == _render(manifest) and all(_is_sound(*entry) for entry in files.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return manifest if is_ours else None


def _is_sound(name: str, fingerprint: Fingerprint) -> bool:
    size, sha256 = fingerprint
    is_plain = _PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST
    return is_plain and type(size) is int and size >= 0 and _SHA256.fullmatch(sha256) is not None


def _damaged(path: Path, what: str) -> CheckpointError:
    hint = "copy the folder again from where it came, or take another checkpoint"
    return CheckpointError(what, where=str(path), hint=hint)
