"""The lock of a save folder: one job at a time writes into it, and a job that died without releasing it keeps nobody
out."""

import errno
import json
import os
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from parallel_core.checkpoint import lock
from parallel_core.checkpoint.lock import LOCK, FolderLock, Holder, InUse
from tests.support.locks import hold


def write(root: Path, holder: Holder) -> None:
    """Write a lock file of `holder` into the folder."""
    root.mkdir(exist_ok=True)
    (root / LOCK).write_text(json.dumps(asdict(holder)))


def elsewhere(**changes) -> Holder:
    """A holder of a lock on another machine."""
    return replace(Holder.this(), **{"machine": "another", "host": "node4", "job": "SLURM_JOB_ID 7"} | changes)


@pytest.fixture
def quick():
    """Short times: a holder touches its file every 0.05 s, and counts as ended after 0.5 s without a touch."""
    with patch.object(lock, "SILENCE_SECONDS", 0.5), patch.object(lock, "TOUCH_SECONDS", 0.05):
        yield


@pytest.mark.slow
def test_a_second_job_is_told_of_the_first(tmp_path):
    """A second job's error names the first one's process, host and job, each time; once the first is killed, the second
    takes the lock and says so."""
    root, said = tmp_path / "new" / "save", []
    first = hold(root, SLURM_JOB_ID="4711")
    for _ in range(2):
        with pytest.raises(InUse, match=rf"process {first.pid} on {os.uname().nodename} \(SLURM_JOB_ID 4711, since 2"):
            FolderLock(root).take(said.append)
    found = lock.holder(root)
    assert found is not None and found.pid == first.pid and not said
    first.kill()
    while lock.holder(root):  # the holder counts as ended before its parent has waited for it
        time.sleep(0.01)
    second = FolderLock(root)
    second.take(said.append)
    first.wait()
    assert len(said) == 1 and f"process {first.pid}" in said[0] and "ended without releasing" in said[0]
    second.release()
    assert list(root.iterdir()) == []


def test_a_process_holds_a_folder_once(tmp_path):
    """A second `FolderLock` in the process that holds the folder neither waits nor releases the lock at its end; the
    first one's is not held while the file names another job."""
    with FolderLock(tmp_path) as first:
        first.take(pytest.fail)
        with FolderLock(tmp_path) as second:
            second.take(pytest.fail)
            assert second.is_held
        assert lock.holder(tmp_path).is_this and first.is_held and not second.is_held
        write(tmp_path, elsewhere())
        assert not first.is_held
        write(tmp_path, first._own)
    assert lock.read(tmp_path) is None


def test_a_later_process_of_the_same_number_is_another(tmp_path):
    """A lock of a process with this process's id and another start time counts as of an ended process: ids come again
    after a restart and in containers."""
    write(tmp_path, replace(Holder.this(), start="1", token="another"))
    said, later = [], FolderLock(tmp_path)
    later.take(said.append)
    later.release()  # a lock that is held touches its file, which other tests would see
    assert "ended without releasing" in said[0]


def test_a_holder_elsewhere_that_shows_signs_of_life(tmp_path, quick):
    """A lock of another machine is watched, with a line that says how long; once its file is touched, the folder is in
    use."""
    said = []
    with FolderLock(tmp_path) as first:
        with patch.object(lock, "machine", lambda *_: "another"):
            first.take(pytest.fail)
        assert lock.holder(tmp_path) is None
        with pytest.raises(InUse, match=rf"process {os.getpid()} on "):
            FolderLock(tmp_path).take(said.append)
        assert len(said) == 1 and "waiting up to" in said[0]


def test_a_holder_elsewhere_that_ends_meanwhile_is_followed(tmp_path, quick):
    """A lock of another machine that is removed while it is watched is taken."""
    write(tmp_path, elsewhere())
    removing = threading.Timer(0.2, (tmp_path / LOCK).unlink)
    removing.start()
    with FolderLock(tmp_path) as second:
        second.take(lambda line: None)
        assert lock.holder(tmp_path).is_this


@pytest.mark.parametrize("content", ["of a job", "", "[]", '{"pid": 3}'])
def test_a_silent_holder_elsewhere_has_ended(tmp_path, quick, content):
    """A lock of another machine, or an unreadable one, as of a job that died while writing it, is taken after
    SILENCE_SECONDS without a touch."""
    if content == "of a job":
        write(tmp_path, elsewhere())
    else:
        (tmp_path / LOCK).write_text(content)
    said, began = [], time.monotonic()
    with FolderLock(tmp_path) as second:
        second.take(said.append)
        assert time.monotonic() - began > 0.5 and ["waiting" in line for line in said] == [True, False]
        assert lock.holder(tmp_path).is_this


@pytest.mark.slow
def test_of_many_that_take_over_at_once_one_does(tmp_path):
    """Six processes that take over one stale lock at once: exactly one gets it."""
    for trial in range(5):
        root = tmp_path / str(trial)
        write(root, replace(Holder.this(), start="1", token="another"))
        outcomes, tell = os.pipe()
        children = [_try_to_take(root, tell) for _ in range(6)]
        taken = b"".join(os.read(outcomes, 1) for _ in children)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert sorted(taken) == sorted(b"n" * 5 + b"y"), taken


def _try_to_take(root: Path, tell: int) -> int:
    """Start a process that tries to take the lock, writes y or n to the pipe `tell`, and waits; its id."""
    child = os.fork()
    if child == 0:
        try:
            FolderLock(root).take(lambda line: None)
            os.write(tell, b"y")
        except InUse:
            os.write(tell, b"n")
        finally:
            time.sleep(60)
            os._exit(1)
    return child


def test_a_lock_that_another_has_taken_is_left_to_it(tmp_path, quick):
    """A holder whose lock another job has taken meanwhile, as when its machine stood still, neither touches nor removes
    it."""
    first = FolderLock(tmp_path)
    first.take(pytest.fail)
    write(tmp_path, elsewhere())
    time.sleep(0.2)
    touched = (tmp_path / LOCK).stat().st_mtime_ns
    time.sleep(0.2)
    first.release()
    assert (tmp_path / LOCK).stat().st_mtime_ns == touched and lock.read(tmp_path).host == "node4"


def test_a_full_disk_leaves_no_lock_of_nobody(tmp_path):
    """A lock whose holder cannot be written (full disk) is removed again, so that the next job can take it."""
    with patch("json.dump", side_effect=OSError(errno.ENOSPC, "No space left on device")), pytest.raises(OSError):
        FolderLock(tmp_path).take(pytest.fail)
    assert list(tmp_path.iterdir()) == []
    with FolderLock(tmp_path) as second:
        second.take(pytest.fail)


def test_a_lock_that_is_a_link_to_nothing_is_an_error(tmp_path):
    """A lock file that is a dangling link is named, and nothing waits for it."""
    (tmp_path / LOCK).symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=f"{LOCK} is a link to nothing; remove it"):
        FolderLock(tmp_path).take(pytest.fail)


def test_a_file_that_cannot_be_read_for_once_stops_no_signs_of_life(tmp_path, quick):
    """A holder goes on touching its lock after a time in which the file could not be read, as on network file
    systems."""
    with FolderLock(tmp_path) as first:
        first.take(pytest.fail)
        with patch.object(lock, "read", return_value=lock._UNKNOWN):
            time.sleep(0.2)
        touched = (tmp_path / LOCK).stat().st_mtime_ns
        time.sleep(0.3)
        assert (tmp_path / LOCK).stat().st_mtime_ns > touched
