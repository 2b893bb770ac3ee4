"""A lock file that lets one job at a time write into a folder of checkpoints, and names that job.

Whether a holder on the same machine still runs is asked of the system. A holder elsewhere, or in another process
namespace, shows it by touching the file every few seconds; nobody's clock is compared with another's.
"""

import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from parallel_core.system.processes import machine, start_time

LOCK = ".lock"
TOUCH_SECONDS = 5.0
SILENCE_SECONDS = 45.0
"""Seconds without a touch of the lock file after which a holder elsewhere is taken to have ended."""
_SETTLE_SECONDS = 0.2
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class InUse(OSError):
    """The error that another process writes into a folder of checkpoints."""


@dataclass(frozen=True)
class Holder:
    """A process that writes into a folder, as its lock file describes it. job: its id in a scheduler or, without
    one, its parent process, in words; machine: the id of its machine and process namespace; start: when the process
    began, in the kernel's ticks (None: not known, "": a system without /proc); since: when this description was made,
    local time; token: random, of this holder alone."""

    job: str
    host: str
    pid: int
    machine: str
    start: str | None
    """Start time of the process, in its kernel's ticks; None if it was not known, empty on a system without /proc."""
    since: str
    token: str

    @classmethod
    def this(cls) -> "Holder":
        """A description of this process as a holder, each time with a new token and the time of now."""
        named = next((f"{name} {os.environ[name]}" for name in _JOB_VARIABLES if os.environ.get(name)), None)
        pid = os.getpid()
        return cls(
            job=named or f"started by process {os.getppid()}",
            host=socket.gethostname(),
            pid=pid,
            machine=machine("pid"),
            start=start_time(pid),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            token=secrets.token_hex(8),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.job}, since {self.since})"

    @property
    def is_here(self) -> bool:
        """Whether the holder's machine and process namespace are those of this process, so that the system can tell
        whether the holder still runs."""
        return self.machine == machine("pid")

    @property
    def runs_here(self) -> bool:
        """Whether the holder still runs, on this machine in this process namespace; False if its start time is not
        known."""
        return self.is_here and self.start is not None and start_time(self.pid) == self.start

    @property
    def is_this(self) -> bool:
        """Whether the holder is this process; False if its start time is not known."""
        return self.runs_here and self.pid == os.getpid()


_UNKNOWN = Holder("a job that has not said which", "an unknown host", 0, "", None, "an unknown time", "")


def read(root: Path) -> Holder | None:
    """The holder that the lock file of `root` names; None without that file, and a `Holder` of an unknown job if it
    cannot be read."""
    for _ in range(2):
        try:
            found = json.loads((root / LOCK).read_bytes())
            return Holder(**{field.name: found[field.name] for field in fields(Holder)})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError):
            time.sleep(_SETTLE_SECONDS)  # another process may be writing it now
    return _UNKNOWN


def holder(root: Path) -> Holder | None:
    """The running process, which can be this one, that holds the folder's lock; None if none is found, and for a
    holder on another machine or in another process namespace, which cannot be judged at once."""
    found = read(root)
    return found if found is not None and found.runs_here else None


class FolderLock:
    """This process's lock of a folder. Where the process has it already, `take` of a second object succeeds, and only
    the first one's `release` ends it."""

    def __init__(self, root: Path) -> None:
        self.root, self._path = root, root / LOCK
        self._own: Holder | None = None
        self._taken: Holder | None = None
        self._released = threading.Event()

    def take(self, say: Callable[[str], None]) -> None:
        """Take the lock of the folder, which is made if it is not there; nothing to do if this process holds it.

        Raises `InUse` if another process writes there. If the lock file cannot be read, or names a process elsewhere,
        which cannot be asked, this waits until the file is touched (then `InUse`) or removed, or `SILENCE_SECONDS` have
        passed without that. say: prints a line for the user.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        own = Holder.this()
        while not self._create(own):
            other = read(self.root)
            if other is None:
                if self._path.is_symlink():  # to nothing: nobody holds it, and it cannot be made
                    raise FileNotFoundError(errno.ENOENT, f"{self._path} is a link to nothing; remove it")
                continue
            if other.is_this:
                self._taken = other
                return
            if not self._has_ended(other, say):
                if not self._path.exists():
                    continue
                raise InUse(f"{self.root}: {other} writes there")
            say(f"{self.root}: {other} has ended without releasing it; this job goes on there")
            self._replace(own)
            if read(self.root) == own:
                break
        self._own = self._taken = own
        self._released = threading.Event()
        threading.Thread(target=self._touch, args=(own, self._released), name="lock", daemon=True).start()

    @property
    def is_held(self) -> bool:
        """Whether `take` succeeded since the last `release`, and the lock file still names the holder that
        it named then."""
        return self._taken is not None and read(self.root) == self._taken

    def release(self) -> None:
        """Remove the lock file, if this object made it and no other has replaced it since."""
        own, self._own, self._taken = self._own, None, None
        self._released.set()
        with suppress(OSError):
            if own is not None and read(self.root) == own:
                self._path.unlink()

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _create(self, own: Holder) -> bool:
        try:
            with self._path.open("x", encoding="utf-8") as file:
                json.dump(asdict(own), file)
        except FileExistsError:
            return False
        except OSError:
            self._path.unlink(missing_ok=True)  # on a full disk the lock would name no owner
            raise
        return True

    def _replace(self, own: Holder) -> None:
        """Put this holder into the lock file in place of one that has ended. Of several that do so at once the last one
        has it."""
        mine = self._path.with_name(f"{LOCK}.{own.token}.tmp")
        mine.write_text(json.dumps(asdict(own)), encoding="utf-8")
        with suppress(FileNotFoundError):  # a faster process has removed it
            mine.replace(self._path)
        time.sleep(_SETTLE_SECONDS)

    def _has_ended(self, other: Holder, say: Callable[[str], None]) -> bool:
        """Whether a holder has ended on this machine, or has shown no sign of life elsewhere for `SILENCE_SECONDS`."""
        if other.is_here:
            return not other.runs_here
        say(f"{self.root}: waiting up to {SILENCE_SECONDS:.0f} s to see whether {other} still writes there")
        before, deadline = self._touched(), time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, SILENCE_SECONDS / 10))
            if self._touched() != before:
                return False
        return True

    def _touched(self) -> int | None:
        """The modification time of the lock file in ns, None without it; it is opened, so that a network's file system
        asks its server."""
        with suppress(OSError), self._path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
        return None

    def _touch(self, own: Holder, released: threading.Event) -> None:
        while not released.wait(TOUCH_SECONDS):
            with suppress(OSError):
                found = read(self.root)
                if found == own:
                    os.utime(self._path)
                elif found != _UNKNOWN:  # one failed read does not mean that another job owns it
                    return
