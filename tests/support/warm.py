"""Processes that a `warm_server` of this pytest forks where a test would start an interpreter: each saves an import of
MindSpore. They are not for a test of imports, of who started whom, or of the terminal.

`Process` runs what `python WORDS` would; `run` waits for its end. `programs()` is a folder with `python` and `msrun` to
put ahead on the PATH of a shell's command.
"""

import atexit
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pynative.startup.launch import quiet_environment
from tests.support.assets import ROOT
from tests.support.warm_client import NETWORK, ask, number

ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
"""Environment variables, read when libraries are loaded, that give each one thread."""
START_SECONDS = 120.0


@functools.cache
def _folder() -> Path:
    """The folder of the server's socket and of the programs, started and made at the first call; both go with this
    process. A fork uses its parent's."""
    above = Path(sys.executable).parents[1]
    if (above / "socket").exists():
        return above
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    place = folder / "socket"
    _write_programs(folder / "bin", place)
    command = [sys.executable, "-m", "tests.support.warm_server", str(place), str(os.getpid())]
    server = subprocess.Popen(command, cwd=ROOT, env=quiet_environment() | ONE_THREAD, stdin=subprocess.DEVNULL)
    atexit.register(lambda: (server.kill(), server.wait(), shutil.rmtree(folder, ignore_errors=True)))
    deadline = time.monotonic() + START_SECONDS
    while not place.exists():
        assert server.poll() is None and time.monotonic() < deadline, "the warm server did not start"
        time.sleep(0.01)
    return folder


class Process:
    """A process forked by the server, with subprocess.Popen's methods; descriptors: number there -> here; network: the
    path of a network namespace."""

    def __init__(
        self,
        words: Sequence[str | Path],
        environment: Mapping[str, str],
        folder: str | Path,
        descriptors: dict[int, int],
        network: str = NETWORK,
    ) -> None:
        self.returncode: int | None = None
        place, order = str(_folder() / "socket"), [str(word) for word in words]
        self._connection, self.pid = ask(place, order, dict(environment), str(folder), descriptors, network)

    def poll(self) -> int | None:
        """The exit code if the process has ended, else None."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; its exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = number(self._connection)
            self._connection.close()
        return self.returncode

    def send_signal(self, which: int) -> None:
        """Send the signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, which)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str | Path],
    folder: str | Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """The result that `subprocess.run([python, *words], capture_output=True, text=True)` would give."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:
        descriptors = {0: nothing.fileno(), 1: out.fileno(), 2: errors.fileno()}
        process = Process(words, os.environ if environment is None else environment, folder, descriptors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0), errors.seek(0)
        return subprocess.CompletedProcess(words, code, out.read().decode(), errors.read().decode())


def programs() -> Path:
    """A folder with `python` and `msrun` made of forks; such ranks do not watch msrun, but end because their `python`
    does."""
    return _folder() / "bin"


def _write_programs(folder: Path, socket: Path) -> None:
    folder.mkdir()
    client = f"exec {sys.executable} -I -S {ROOT}/tests/support/warm_client.py {socket}"
    msrun = Path(sys.executable).with_name("msrun")
    for name, script in {"python": "", "msrun": f" {msrun}"}.items():
        (folder / name).write_text(f'#!/bin/sh\n{client}{script} "$@"\n')
        (folder / name).chmod(0o755)


def programs_first() -> dict[str, str]:
    """This process's environment with `programs()` ahead on the PATH."""
    return quiet_environment() | {"PATH": f"{programs()}{os.pathsep}{os.environ['PATH']}"}
