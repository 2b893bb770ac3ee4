"""Processes of this machine: whether two share it, and whether one still runs."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def machine(*namespaces: str) -> str:
    """A text that is equal for two processes exactly if they run on the same boot of a machine, in the same namespaces
    of these kinds (`net`, `pid`). On a system without /proc it is the host's name alone."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "-".join([boot, *(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in namespaces)])
    return socket.gethostname()


def start_time(pid: int) -> str | None:
    """The time at which process `pid` of this namespace began, in the kernel's ticks since the boot; None if there is
    no such process, or it has ended and its parent has not waited for it. Empty for a process on a system without
    /proc.

    The kernel's ticks, because psutil's time of day moves with the clock. A later process with the same number has
    another time.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return "" if not Path("/proc/self/stat").exists() and _answers(pid) else None
    return None if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    """Whether a process with this number exists, on systems without /proc."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
