"""Ranks end with their launcher: when an msrun that waits for its ranks ends, however it ends, the ranks that it
started are killed; a rank that handles SIGTERM is sent that signal instead.

msrun gives every rank a session of its own, so that SIGHUP of a closed terminal does not reach a rank, nor SIGTERM or
SIGKILL to msrun. Each rank therefore watches msrun, also across shells that stand between. An msrun that does not wait
for its ranks (its default, `--join=False`) ends first by design, and nothing is watched.
"""

import contextlib
import os
import re
import select
import signal
import threading
import time
from pathlib import Path

import psutil

GRACE_SECONDS = 0.5
"""Seconds between a rank's last line and its end, in which the line reaches log and terminal and other ranks say the
same."""
TAIL_SECONDS = 2.0
"""Seconds after which msrun has started the `tail` of this rank's log, too."""
_JOINS = re.compile(r"--j(?:o|oi|oin)?[= ]True\b")
_JOB = "MS_SCHED_PORT"
"""Environment variable of all that one msrun starts; its value differs between the msruns of a host."""
_NAMES = ("msrun", "mindspore.parallel.cluster.run")


def watch() -> None:
    """Watch, in a thread, the msrun that started this process and waits for its ranks: when it ends, this process gets
    SIGTERM if it handles that, else it is ended, with its process group unless msrun is in that, too. If that msrun
    has ended already and left a `tail` on one of its logs, end this process, of a rank its whole process group. Else do
    nothing."""
    launcher = _launcher()
    if launcher is not None:
        threading.Thread(target=_Watch(launcher).run, daemon=True).start()
    elif _JOB in os.environ and (tails := _orphaned_tails()):
        _say("msrun, which started it, ended before it could be watched")
        time.sleep(TAIL_SECONDS)  # lets the other ranks see the same `tail` processes first
        _kill(tails)
        os.killpg(os.getpgrp(), signal.SIGKILL) if os.environ["MS_ROLE"] == "MS_WORKER" else os._exit(1)


def _launcher() -> psutil.Process | None:
    """The nearest ancestor process that is an msrun which waits for its ranks; None if there is none."""
    with contextlib.suppress(psutil.Error):  # processes further up may belong to another user
        process = psutil.Process().parent()
        while process is not None:
            if _waits(process):
                return process
            process = process.parent()
    return None


def _waits(process: psutil.Process) -> bool:
    """Whether a process is an msrun that waits for its ranks (--join=True)."""
    words = process.cmdline()
    return any(Path(word).name in _NAMES for word in words[:4]) and bool(_JOINS.search(" ".join(words)))


def _orphaned_tails() -> set[psutil.Process]:
    """The `tail` processes on this job's logs, found by msrun's environment: msrun starts them only where it waits for
    its ranks, and if it alone is killed they stay."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() == "tail" and process.environ().get(_JOB) == os.environ[_JOB]:
                found.add(process)
    return found


def _say(why: str) -> None:
    """Write one line to stderr that this process ends and why: past Python's buffer, whose lock the main thread may
    hold."""
    name = "scheduler" if os.environ.get("MS_ROLE") == "MS_SCHED" else f"rank {os.environ.get('RANK_ID')}"
    os.write(2, f"{name} ends: {why}\n".encode())


def _kill(tails: set[psutil.Process]) -> None:
    for tail in tails:
        with contextlib.suppress(psutil.NoSuchProcess):
            tail.kill()


class _Watch:
    """The watch over a launcher, and over the `tail -f` of its ranks' logs, which it leaves behind."""

    def __init__(self, launcher: psutil.Process) -> None:
        self.launcher = launcher
        self.descriptor = os.pidfd_open(launcher.pid)
        self.group = os.getpgid(launcher.pid)

    def run(self) -> None:
        """Wait for the launcher's end, say so, and end this process.

        If the run handles SIGTERM (--exit-signal-handler: a checkpoint after the step under way) it is sent one.
        Otherwise everything in this process's group is killed, shells and workers in it, too; if the group is the
        launcher's, this process alone ends. Before that msrun's `tail` processes are killed, of which a list
        was made when this began and, if msrun still ran then, 2 s later.
        """
        tails = self._wait()
        _say(f"msrun (pid {self.launcher.pid}), which started it, has ended")
        time.sleep(GRACE_SECONDS)
        _kill(tails)
        if callable(signal.getsignal(signal.SIGTERM)):
            os.kill(os.getpid(), signal.SIGTERM)
        elif os.getpgrp() != self.group:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        else:
            os._exit(1)

    def _wait(self) -> set[psutil.Process]:
        """Wait for the launcher's end; the `tail` processes that it had started. It starts a rank's after the rank."""
        tails: set[psutil.Process] = set()
        for seconds in (TAIL_SECONDS, None):
            with contextlib.suppress(psutil.Error, OSError):
                tails |= {child for child in self.launcher.children() if child.name() == "tail"}
            if select.select([self.descriptor], [], [], seconds)[0]:
                break
        return tails
