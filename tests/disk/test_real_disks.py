"""Real disks, not pretended ones: full, forbidden, over the limit, interrupted, and not files at all."""

import errno
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
from itertools import repeat

import pytest

from leftward import disk
from leftward.errors import DiskError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
CONTENT = random.Random(2).randbytes(1_000_000)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = shutil.which("mount")
    mounting = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if not mounting or mounting.returncode != 0:
        pytest.skip("only root may make the 4 MB disk that this fills")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk(small_disk):
    disk.write_file(small_disk / "model", CONTENT)
    disk.make_folder(small_disk / "checkpoints")
    log = disk.Log(small_disk / "log.jsonl")
    log.append(1, {"loss": 1.0})
    before = sorted(small_disk.rglob("*"))
    for write in (
        lambda: disk.write_file(small_disk / "model", repeat(CONTENT[:65_536], 200)),
        lambda: disk.write_file(small_disk / "model", CONTENT * 8),
        lambda: publish(small_disk / "checkpoints" / "1"),
    ):
        with pytest.raises(DiskError, match="No space left") as full:
            write()
        assert "free some space" in full.value.hint
        assert (small_disk / "model").read_bytes() == CONTENT
        assert sorted(small_disk.rglob("*")) == before
    with open(small_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while filler.write(bytes(4_096)):
            pass
    steps = 1
    with pytest.raises(DiskError, match="No space left"):
        while True:
            log.append(steps + 1, {"loss": 1.0})
            steps += 1
    assert not log.path.read_bytes().endswith(b"\n")  # the disk took a part of the line
    assert [row["step"] for row in log.rows()] == list(range(1, steps + 1))
    (small_disk / "filler").unlink()
    log.append(steps + 1, {"loss": 1.0})
    assert [row["step"] for row in log.rows()] == list(range(1, steps + 2))
    disk.write_file(small_disk / "model", b"better")
    assert (small_disk / "model").read_bytes() == b"better"


def publish(path):
    with disk.publish_folder(path) as unfinished:
        for name in "abcdef":
            disk.write_file(unfinished / name, CONTENT)


def in_a_child(act):
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_limit_on_file_sizes(scratch):
    disk.write_file(scratch / "model", b"old")

    def run():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        for write in (
            lambda: disk.write_file(scratch / "model", CONTENT),
            lambda: publish(scratch / "100"),
        ):
            with pytest.raises(DiskError, match="File too large"):
                write()

    in_a_child(run)
    assert os.listdir(scratch) == ["model"]
    assert (scratch / "model").read_bytes() == b"old"


def test_no_permission(scratch):
    (scratch / "file").write_bytes(b"old")
    (scratch / "folder").mkdir()
    os.chmod(scratch, 0o555)

    def run():
        if os.geteuid() == 0:
            os.setuid(65_534)  # root may write anywhere: be nobody
        for write in (
            lambda: disk.write_file(scratch / "file", b"new"),
            lambda: disk.write_file(scratch / "deeper" / "file", b"new"),
            lambda: publish(scratch / "100"),
            lambda: disk.remove_folder(scratch / "folder"),
            lambda: disk.make_folder(scratch / "a" / "b"),
            lambda: disk.Log(scratch / "log.jsonl").append(1, {}),
            lambda: disk.lock(scratch).__enter__(),
        ):
            with pytest.raises(DiskError, match=r"(Permission denied|No such file)") as refused:
                write()
            assert refused.value.hint

    in_a_child(run)
    os.chmod(scratch, 0o755)
    assert sorted(os.listdir(scratch)) == ["file", "folder"]
    assert (scratch / "file").read_bytes() == b"old"


def test_what_is_not_a_plain_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder"):
        with pytest.raises(DiskError, match="not a plain file"):
            disk.write_file(path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/file")
    for content in (b"one", b"two"):
        disk.write_file(tmp_path / "link", content)
        assert (tmp_path / "elsewhere" / "file").read_bytes() == content
        assert (tmp_path / "link").is_symlink()


def test_a_file_in_a_folders_place(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper" / "still"):
        with pytest.raises(DiskError):
            disk.make_folder(path)
    with pytest.raises(DiskError):
        publish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_others_may_read_what_we_write(tmp_path):
    """As with any program, the umask decides: a hidden name must not bring its own permissions along."""
    before = os.umask(0o022)
    try:
        disk.write_file(tmp_path / "file", b"new")
        publish(tmp_path / "folder")
        disk.Log(tmp_path / "log.jsonl").append(1, {})
    finally:
        os.umask(before)
    for name in ("file", "log.jsonl"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


def test_a_storm_of_signals(tmp_path):
    """System calls that a signal interrupts are taken up again."""
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for size in range(1, 12):
            publish(tmp_path / str(size))
            disk.write_file(tmp_path / "file", [CONTENT] * size)
            assert disk.hash_file(tmp_path / "file").size == size * len(CONTENT)
            disk.remove_folder(tmp_path / str(size))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(rang) > 5
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_disk_that_cannot_push_folders(number, tmp_path, monkeypatch):
    """Some network disks refuse to be asked, which is no failure; that of a file always is one."""
    push, refused = os.fsync, {stat.S_ISDIR}

    def fsync(descriptor):
        if any(kind(os.fstat(descriptor).st_mode) for kind in refused):
            raise OSError(number, os.strerror(number))
        push(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if number == errno.EIO:
        with pytest.raises(DiskError):
            disk.write_file(tmp_path / "file", b"new")
    else:
        disk.write_file(tmp_path / "file", b"new")
        publish(tmp_path / "folder")
    assert (tmp_path / "file").read_bytes() == b"new"
    refused.add(stat.S_ISREG)
    for write in (
        lambda: disk.write_file(tmp_path / "file", b"newer"),
        lambda: disk._sync(tmp_path / "file"),
    ):
        with pytest.raises(DiskError):
            write()
    assert (tmp_path / "file").read_bytes() == b"new"
