"""Whatever operation fails, or is the last one a process lives to see: old or new is there, never a mixture.

Each scenario is run again and again; the first time its first operation fails (or kills the process), then
its second, and so on, until a run passes without meeting the fault.
"""

import errno
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from leftward import disk
from leftward.errors import DiskError

PASS = disk._operation
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EINTR)
CONTENT = random.Random(0).randbytes(100_000)


@dataclass(frozen=True)
class Scenario:
    """What stands there before, and the verbs to try, each of which happens wholly or not at all."""

    prepare: Callable[[Path], object]
    steps: tuple[Callable[[Path], object], ...]
    operations: int

    def run(self, folder):
        for step in self.steps:
            step(folder)


def nothing(folder):
    pass


def old_file(folder):
    (folder / "file").write_bytes(b"old content")


def publish(folder, name="100", size=1_000):
    with disk.publish_folder(folder / name) as unfinished:
        disk.write_file(unfinished / "state", [CONTENT[:size], b"", CONTENT[size : 2 * size]])
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "by others").write_bytes(b"written by another library")
        disk.write_manifest(unfinished, disk.Manifest({"state": disk.hash_file(unfinished / "state")}))


def old_log(folder):
    for step in range(10, 50, 10):
        disk.Log(folder / "log.jsonl").append(step, {"loss": 1 / step})


def torn_log(folder):
    old_log(folder)
    with open(folder / "log.jsonl", "ab") as file:
        file.write(b'{"step": 50, "lo')


def one_more_row(folder):
    disk.Log(folder / "log.jsonl").append(60, {"loss": 0.125, "said": "é\u2028\n"})


def saved_twice(folder):
    old_log(folder)
    disk.make_folder(folder / "checkpoints")
    publish(folder / "checkpoints", "100")
    publish(folder / "checkpoints", "200")
    disk.write_file(folder / "weights", b"best so far")
    disk.write_manifest(folder, disk.Manifest({"weights": disk.hash_file(folder / "weights")}, {"step": 200}))


def new_manifest(folder):
    disk.write_manifest(folder, disk.Manifest({"weights": disk.hash_file(folder / "weights")}, {"step": 300}))


def own(folder):
    with disk.lock(folder):
        pass


SCENARIOS = {
    "a new file": Scenario(nothing, (lambda f: disk.write_file(f / "file", CONTENT),), 5),
    "a file replaced": Scenario(
        old_file, (lambda f: disk.write_file(f / "file", [b"new ", bytearray(b"content")]),), 6
    ),
    "a new folder": Scenario(nothing, (publish,), 20),
    "an empty folder filled": Scenario(lambda f: (f / "100").mkdir(), (publish,), 20),
    "a folder made": Scenario(nothing, (lambda f: disk.make_folder(f / "model"),), 2),
    "a folder removed": Scenario(publish, (lambda f: disk.remove_folder(f / "100"),), 9),
    "a row": Scenario(old_log, (one_more_row,), 3),
    "a first row": Scenario(nothing, (one_more_row,), 3),
    "a row after a torn one": Scenario(torn_log, (one_more_row,), 3),
    "a log cut": Scenario(torn_log, (lambda f: disk.Log(f / "log.jsonl").cut_after(20),), 6),
    "a folder owned": Scenario(nothing, (own,), 6),
    "a whole save": Scenario(
        saved_twice,
        (
            lambda f: disk.Log(f / "log.jsonl").append(300, {"loss": 0.5}),
            lambda f: disk.Log(f / "log.jsonl").sync(),
            lambda f: publish(f / "checkpoints", "300"),
            lambda f: disk.remove_folder(f / "checkpoints" / "100"),
            lambda f: disk.write_file(f / "weights", b"better"),
            new_manifest,
        ),
        45,
    ),
}
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())


def look(folder):
    """What a reader finds: no hidden names, and of a log the rows."""
    found = {}
    for path in folder.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.suffix == ".jsonl":
            content = disk.Log(path).rows()
        else:
            content = path.read_bytes() if path.is_file() else "a folder"
        found[str(path.relative_to(folder))] = content
    if found.get("log.jsonl") == []:
        del found["log.jsonl"]  # a log without rows says what no log says
    return found


def strays(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(disk.HIDDEN)]


def states(scenario, scratch):
    """Prepare the scenario once, to be copied for every run, and see what each of its steps leaves."""
    (scratch / "prepared").mkdir()
    scenario.prepare(scratch / "prepared")
    folder = prepared(scratch, "states")
    found = [look(folder)]
    for step in scenario.steps:
        step(folder)
        found.append(look(folder))
    return found


def prepared(scratch, name):
    return Path(shutil.copytree(scratch / "prepared", scratch / name))


def check(scenario, folder, allowed, *, finished):
    """The promise, and that the next run can go on from here."""
    now = look(folder)
    assert now in ([allowed[-1]] if finished else allowed)
    disk.sweep(folder)
    if (folder / "checkpoints").exists():
        disk.sweep(folder / "checkpoints")
        assert any(disk.verify(kept) for kept in (folder / "checkpoints").iterdir())
    assert strays(folder) == []
    assert look(folder) == now
    if now == allowed[0]:
        scenario.run(folder)
        assert look(folder) == allowed[-1]
    own(folder)


def open_descriptors():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@every_scenario
@pytest.mark.parametrize("happened", [False, True], ids=["not done", "done yet called failed"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_an_operation_fails(scenario, forever, happened, scratch, monkeypatch):
    allowed = states(scenario, scratch)
    for number in NUMBERS:
        for n in range(1, 1_000):
            folder = prepared(scratch, f"{number}-{n}")
            count = 0

            def fail(name, path, action, number=number, n=n):
                nonlocal count
                count += 1
                is_hit = count == n or (forever and count > n)

                def failing():
                    if happened:
                        result = action()
                        if name == "open":
                            os.close(result)
                    raise OSError(number, os.strerror(number))

                return PASS(name, path, failing if is_hit else action)

            before = open_descriptors()
            monkeypatch.setattr(disk, "_operation", fail)
            try:
                scenario.run(folder)
                finished = True
            except DiskError as error:
                finished = False
                assert os.strerror(number) in error.what
                assert str(folder) in error.where
                assert error.hint
                assert error.__cause__ is not None
            monkeypatch.setattr(disk, "_operation", PASS)
            assert open_descriptors() == before
            check(scenario, folder, allowed, finished=finished)
            if count < n:
                assert finished
                break
        assert n > scenario.operations


@pytest.mark.parametrize("name", ["a new file", "a file replaced", "a new folder", "a log cut"])
def test_an_error_or_ctrl_c_leaves_no_stray_even_before_a_sweep(name, scratch, monkeypatch):
    scenario = SCENARIOS[name]
    allowed = states(scenario, scratch)
    for error in (KeyboardInterrupt(), OSError(errno.EIO, "no"), MemoryError()):
        for n in range(1, scenario.operations + 1):
            folder = prepared(scratch, f"{type(error).__name__}-{n}")
            count = 0

            def interrupt(name, path, action, n=n, error=error):
                nonlocal count
                count += 1
                result = PASS(name, path, action)
                if count == n:
                    if name == "open":
                        os.close(result)
                    if isinstance(error, OSError):
                        raise DiskError("no")
                    raise error
                return result

            monkeypatch.setattr(disk, "_operation", interrupt)
            with pytest.raises(DiskError if isinstance(error, OSError) else type(error)):
                scenario.run(folder)
            monkeypatch.setattr(disk, "_operation", PASS)
            assert strays(folder) == []
            check(scenario, folder, allowed, finished=False)


def in_a_child(act):
    """Run `act` in a forked process; the signal that killed it, or 0 when it ended well."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0, "the child failed in another way than by the signal"
    return 0


@every_scenario
@pytest.mark.parametrize("halfway", [False, True], ids=["before", "half a write later"])
# The child touches nothing but the disk, so locks that other threads hold here do not matter to it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_is_killed(scenario, halfway, scratch):
    allowed = states(scenario, scratch)
    for n in range(1, 1_000):
        folder = prepared(scratch, str(n))

        def run(folder=folder, n=n):
            count = 0

            def kill(name, path, action):
                nonlocal count
                count += 1
                if count == n and halfway and name == "write":
                    write = os.write
                    os.write = lambda descriptor, data: write(descriptor, data[: len(data) // 2])
                    PASS(name, path, action)
                if count == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                return PASS(name, path, action)

            disk._operation = kill
            scenario.run(folder)

        killed = in_a_child(run) == signal.SIGKILL
        check(scenario, folder, allowed, finished=not killed)
        if not killed:
            break
    assert n > scenario.operations


def test_short_writes(scratch, monkeypatch):
    write = os.write
    chance = random.Random(1)
    monkeypatch.setattr(os, "write", lambda d, data: write(d, data[: chance.randint(1, 5_000)]))
    disk.write_file(scratch / "one", CONTENT)
    disk.write_file(scratch / "many", [CONTENT[i : i + 7_777] for i in range(0, len(CONTENT), 7_777)])
    monkeypatch.setattr(os, "write", lambda d, data: write(d, data[: chance.randint(1, 5)]))
    old_log(scratch)
    assert (scratch / "one").read_bytes() == (scratch / "many").read_bytes() == CONTENT
    assert [row["step"] for row in disk.Log(scratch / "log.jsonl").rows()] == [10, 20, 30, 40]


def test_a_failing_block_publishes_nothing(scratch):
    with pytest.raises(ZeroDivisionError), disk.publish_folder(scratch / "100") as unfinished:
        disk.write_file(unfinished / "state", b"...")
        raise ZeroDivisionError
    assert list(scratch.iterdir()) == []


def test_failing_content_writes_nothing(scratch):
    def pieces():
        yield b"new"
        raise ZeroDivisionError

    old_file(scratch)
    with pytest.raises(ZeroDivisionError):
        disk.write_file(scratch / "file", pieces())
    assert look(scratch) == {"file": b"old content"}
    assert strays(scratch) == []


def test_a_folder_that_holds_something_is_not_replaced(scratch):
    publish(scratch)
    before = look(scratch)
    with pytest.raises(DiskError, match=r"(not empty|exists)"):
        publish(scratch, size=2_000)
    assert look(scratch) == before
    assert strays(scratch) == []


def test_sweep_spares_what_is_not_ours(scratch):
    kept = [".hidden", "file", disk.LOCK, "leftward-unfinished-1", ".leftward"]
    for name in kept:
        (scratch / name).touch()
    (scratch / f"{disk.HIDDEN}1").touch()
    (scratch / f"{disk.HIDDEN}2" / "deep" / "er").mkdir(parents=True)
    (scratch / f"{disk.HIDDEN}2" / "link").symlink_to(scratch, target_is_directory=True)
    disk.sweep(scratch)
    assert sorted(os.listdir(scratch)) == sorted(kept)
    disk.sweep(scratch / "not there")


def test_the_order_that_survives_a_power_loss(scratch, monkeypatch):
    """What a rename shows must be on the disk before it, and the rename before anything that counts on it."""
    seen = []

    def record(name, path, action):
        seen.append((name, path.name))
        return PASS(name, path, action)

    monkeypatch.setattr(disk, "_operation", record)
    folder = scratch / "folder"
    disk.make_folder(folder)
    assert seen == [("make", "folder"), ("sync", scratch.name)]
    seen.clear()
    disk.write_file(folder / "file", [b"a", b"b"])
    by_write = [(name, "file") for name in ("open", "write", "write", "sync", "rename")]
    assert seen == [*by_write, ("sync", "folder")]
    seen.clear()
    with disk.publish_folder(folder / "100") as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").touch()
    hidden = unfinished.name
    assert seen[:2] == [("make", "100"), ("list", "100")]
    assert seen[2:5] == [("sync", "inner"), ("sync", "file"), ("sync", hidden)]
    assert seen[5:] == [("rename", "100"), ("sync", "folder")]
    seen.clear()
    disk.remove_folder(folder / "100")
    assert seen[:2] == [("rename", "100"), ("sync", "folder")]
    assert {name for name, _ in seen[2:]} == {"list", "remove"}
