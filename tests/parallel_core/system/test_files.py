"""`replacing`: a file appears whole or not at all."""

import os
import subprocess
import sys

import pytest

from parallel_core.system.files import replacing
from parallel_core.system.processes import start_time


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    """The old file is there until the block ends, then the new one; no other file stays."""
    path = tmp_path / "new" / "f"
    with replacing(path) as file:
        file.write(b"old")
        assert not path.exists()
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_nothing_behind(tmp_path):
    """An exception in the block leaves neither the file nor a temporary one."""
    with pytest.raises(RuntimeError, match="half way"), replacing(tmp_path / "f") as file:
        file.write(b"half")
        raise RuntimeError("half way")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_stays_full_leaves_nothing_behind(tmp_path):
    """Bytes that cannot be written even when the file is closed give the error of writing, and the temporary file is
    removed."""
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "f") as file:
        file.write(b"more")
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_process_may_have_any_name():
    """The start of a process whose name is no UTF-8 is read."""
    name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff) \\xfe'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", name], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert (start_time(process.pid) or "").isdigit()
        process.kill()
