"""msrun as a child of this process: starting it, showing its lines, and ending it with its ranks."""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TextIO

import psutil

from parallel_core.system.terminal import Screen


def train_iters(command: Sequence[str]) -> int | None:
    """The number behind the command's last --train-iters; None without one, or if it is not all digits."""
    words = " ".join(command).replace("--train-iters=", "--train-iters ").split()
    counts = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--train-iters"]
    return int(counts[-1]) if counts and counts[-1].isdigit() else None


def show(lines: Iterable[str], total: int | None, output: TextIO) -> None:
    """Show the lines of a run by a `Screen`: on a terminal steps update its last line, and other lines are put above
    that; elsewhere, and with TERM=dumb, the lines are written as they are. total: steps of the run; None or 0:
    taken from the lines, if one says it."""
    screen = Screen(output, total)
    for line in lines:
        screen.write(line)
    screen.close()


INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
_AGAIN_SECONDS = 3.0
"""Seconds after which Ctrl-C is sent again: longer than msrun, which ends its ranks at once, takes."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_SECONDS = 1.0
"""Seconds that ranks get to end by themselves when they see msrun end; they take half of that."""


def start(command: Sequence[str], ends_with_parent: bool) -> int:
    """Run msrun with the words of `command` behind the first, show what it prints (`without_noise`), and return 143
    after SIGTERM, else 130 after Ctrl-C, else its exit code (128 + the number of a signal that ended it).

    SIGTERM goes on to the ranks, or to msrun if it has none yet, and msrun's end is awaited. With `ends_with_parent`
    the end of the process that started this one counts as SIGTERM. Raises SystemExit if msrun is neither on the PATH
    nor beside this Python.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` makes children ignore SIGINT
    process = subprocess.Popen(
        [_msrun(), *command[1:]],
        env=os.environ | {"PATH": _path()},
        preexec_fn=end_with_parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
    )
    told = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        os.write(2, b"launch: told to end by SIGTERM, which goes on to the ranks\n")
        _end_ranks(process.pid)

    signal.signal(signal.SIGTERM, pass_on)
    if ends_with_parent:
        Thread(target=_await_parent, args=(os.pidfd_open(os.getppid()),), daemon=True).start()
    assert process.stdout is not None
    shown = without_noise(process.stdout), train_iters(command), sys.stdout
    reader = Thread(target=show, args=shown, daemon=True)
    reader.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal interrupts msrun, too
        _interrupt(process)
        code = INTERRUPTED
    if process.returncode < 0:
        _end_orphans()
    reader.join(timeout=2)  # processes that msrun leaves behind may hold the pipe open
    return TERMINATED if told else of_shell(code)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Send SIGINT to msrun until it ends: Python may lose a signal in the middle of an import."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_AGAIN_SECONDS)
            return
        process.send_signal(signal.SIGINT)


def of_shell(code: int) -> int:
    """A child's exit code as a shell gives it: 128 + the number of the signal if one ended it (-number here), else the
    code as it is."""
    return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    """End the processes that a killed msrun leaves, and wait for them: ranks that are saving, or that started too late
    to see msrun end.

    As a subreaper this process is the parent of its descendants' orphans.
    """
    time.sleep(_GRACE_SECONDS)
    orphans = psutil.Process().children()
    _terminate(orphans)
    psutil.wait_procs(orphans)


def _path() -> str:
    """The PATH with this Python's programs first: msrun's ranks are run by the first `python`."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _msrun() -> str:
    found = shutil.which("msrun") or shutil.which("msrun", path=_path())
    if found is None:
        raise SystemExit("error: msrun, which MindSpore installs, is not on the PATH: activate its environment")
    return found


def end_with_parent() -> None:
    """Have Linux send this process SIGTERM when the thread that started it ends, at the latest with its process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_parent(descriptor: int) -> None:
    """Wait until the parent has ended (`descriptor`, of the process, becomes readable), and send this process SIGTERM.
    The kernel's own signal would also come with the end of the thread that started this process."""
    select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _end_ranks(msrun: int) -> None:
    """Send SIGTERM to all ranks, or to msrun if it has not started any. msrun: its process number."""
    ranks = [child for child in psutil.Process(msrun).children() if _name(child) not in ("tail", "")]
    _terminate(ranks or [psutil.Process(msrun)])


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _terminate(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()


_OF_MSRUN = "/process_entity/_api.py:"
_NOISE = ("Distributed job is spawned", "The '--tail_worker_log' is:")


def without_noise(lines: Iterator[str]) -> Iterator[str]:
    """The lines, but of a traceback whose second line names msrun only the line with the error, the first behind that
    which is not indented; without msrun's warnings that it waits for its processes and that ranks are not shown; and
    of a line with " Environment variable [RANK_ID" or " Execute command:" only the part before. A rank's messages would
    get lost among these."""
    for line in lines:
        if _OF_MSRUN in line and any(words in line for words in _NOISE):
            continue
        if line.startswith("Traceback "):
            second = next(lines, "")
            if "msrun" in second:
                line = next((line for line in lines if not line.startswith(" ")), "")
            else:
                yield line
                line = second
        yield line.partition(" Environment variable [RANK_ID")[0].partition(" Execute command:")[0].rstrip("\n") + "\n"
