"""A folder has one owner at a time, and a dead one is none."""

import os
import signal
import time

import pytest

from leftward import disk
from leftward.errors import DiskError

# The children touch nothing but the disk, so locks that other threads hold here do not matter to them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

RUNS = 4


def fork(act):
    """Start `act` in a child; it reports by bytes on the pipe it is given."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def read_exactly(descriptor, size):
    found = b""
    while len(found) < size and (more := os.read(descriptor, size - len(found))):
        found += more
    return found


@pytest.mark.parametrize("race", range(20))
def test_one_of_many_wins(race, scratch):
    if race % 2:
        (scratch / disk.LOCK).write_text("1234567890")  # what a killed run left
    start, report, leave = os.pipe(), os.pipe(), os.pipe()

    def run():
        os.close(start[1]), os.close(leave[1])
        os.read(start[0], 1)  # returns in all children at once, when the parent closes its end
        try:
            with disk.lock(scratch):
                os.write(report[1], b"won ")
                os.read(leave[0], 1)
        except DiskError:
            os.write(report[1], b"lost")

    children = [fork(run) for _ in range(RUNS)]
    os.close(report[1]), os.close(start[1])
    reports = read_exactly(report[0], 4 * RUNS)
    os.close(leave[1])
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * RUNS
    for descriptor in (start[0], report[0], leave[0]):
        os.close(descriptor)
    assert reports.count(b"won ") == 1
    assert reports.count(b"lost") == RUNS - 1
    assert os.listdir(scratch) == []


def test_never_two_inside(scratch):
    """Owners come and go, each removing the file of the lock: nobody may slip in with a removed one."""
    (scratch / "own").mkdir()
    rounds = 150

    def run():
        done = 0
        until = time.monotonic() + 30
        while done < rounds and time.monotonic() < until:
            try:
                with disk.lock(scratch / "own"):
                    os.close(os.open(scratch / "inside", os.O_CREAT | os.O_EXCL))  # fails where another is
                    os.unlink(scratch / "inside")
                    done += 1
            except DiskError:
                pass
        if done < rounds:
            raise RuntimeError("starved")

    children = [fork(run) for _ in range(RUNS)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * RUNS
    assert os.listdir(scratch) == ["own"]


def test_the_owner_is_named_and_a_killed_one_is_none(scratch):
    report = os.pipe()

    def run():
        with disk.lock(scratch):
            os.write(report[1], b".")
            time.sleep(60)

    child = fork(run)
    os.read(report[0], 1)
    with pytest.raises(DiskError) as refused, disk.lock(scratch):
        pass
    assert str(refused.value) == (
        f"another run (process {child}) is writing here\n"
        f"  where: {scratch}\n"
        f"  to do: wait until it has ended, or choose another folder"
    )
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(report[0]), os.close(report[1])
    assert (scratch / disk.LOCK).read_text() == str(child)
    with disk.lock(scratch):
        assert (scratch / disk.LOCK).read_text() == str(os.getpid())
    assert os.listdir(scratch) == []


def test_a_refused_run_leaves_the_owner_in_place(scratch):
    with disk.lock(scratch):
        for _ in range(3):
            with pytest.raises(DiskError, match=f"process {os.getpid()}"), disk.lock(scratch):
                pass
        disk.sweep(scratch)
        assert os.listdir(scratch) == [disk.LOCK]
    with pytest.raises(ZeroDivisionError), disk.lock(scratch):
        raise ZeroDivisionError
    with disk.lock(scratch):
        pass
    assert os.listdir(scratch) == []


def test_no_folder_no_lock(scratch):
    with pytest.raises(DiskError, match="No such file"), disk.lock(scratch / "not there"):
        pass
    assert os.listdir(scratch) == []
