"""No rank outlives its launcher, nor does what the launcher started beside the ranks.

The launcher is a few lines that start ranks as msrun does, in sessions of their own, with a `tail` of a log.
`tests/examples/test_interrupted.py` does the same to msrun itself.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.assets import ROOT

SECONDS = 5.0
"""Seconds within which ranks end after their launcher; they wait half a second for each other's last lines."""
LAUNCHER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that were started by nohup would hand on that it is ignored
for rank, command in enumerate(sys.argv[2:]):
    os.environ.update(MS_ROLE="MS_WORKER", RANK_ID=str(rank))
    with open(f"log.{rank}", "w") as log:
        subprocess.Popen(["bash", "-c", command], preexec_fn=os.setsid, stdout=log, stderr=log)
    if sys.argv[1] == "--join=True":
        subprocess.Popen(["tail", "-f", f"log.{rank}"])
time.sleep(0 if sys.argv[1] == "--join=False" else 600)
"""
RANK = """
import os, signal, sys, time
if "handles" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("saved"))
import pynative
open(f"pid.{os.environ['RANK_ID']}", "w").write(str(os.getpid()))
time.sleep(600)
"""


def start(folder: Path, join: str, *ranks: str) -> tuple[subprocess.Popen, list[psutil.Process]]:
    """(launcher, all processes that it started) once every rank has written its process id, which it does when it
    watches the launcher."""
    (folder / "msrun").write_text(LAUNCHER)
    (folder / "rank.py").write_text(RANK)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    commands = [rank.replace("RANK", f"{sys.executable} rank.py") for rank in ranks]
    launcher = subprocess.Popen([sys.executable, "msrun", join, *commands], cwd=folder, env=environment)
    started: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + 60
    while len(list(folder.glob("pid.*"))) < len(ranks):
        started |= {process.pid: process for process in psutil.Process(launcher.pid).children(recursive=True)}
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return launcher, list(started.values())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_launcher(tmp_path, number):
    """SIGHUP, SIGTERM or SIGKILL of the launcher: every rank logs why and ends, also one below a shell, which does not
    go on, and so do the logs' tails."""
    launcher, started = start(tmp_path, "--join=True", "exec RANK", "RANK; touch went_on")
    assert len(started) == 5
    launcher.send_signal(number)
    launcher.wait()
    assert psutil.wait_procs(started, SECONDS)[1] == []
    for rank in range(2):
        line = f"rank {rank} ends: msrun (pid {launcher.pid}), which started it, has ended\n"
        assert (tmp_path / f"log.{rank}").read_text() == line
    assert not (tmp_path / "went_on").exists()


def test_a_rank_that_handles_sigterm_ends_as_it_likes(tmp_path):
    """A rank with a SIGTERM handler, as --exit-signal-handler installs to save, runs it when the launcher has ended."""
    launcher, started = start(tmp_path, "--join=True", "RANK handles")
    launcher.kill()
    launcher.wait()
    assert psutil.wait_procs(started, SECONDS)[1] == []
    assert (tmp_path / "log.0").read_text().endswith("has ended\nsaved\n")


@pytest.mark.parametrize(("port", "ends"), [("1", True), ("2", False)])
def test_ranks_that_begin_when_their_launcher_has_ended_already_end(tmp_path, port, ends):
    """Such ranks recognise it by the `tail` processes of their logs, which exist only where msrun waits for its ranks;
    another job's do not count."""
    late = f"export MS_SCHED_PORT={port}; while [ ! -e go ]; do sleep 0.05; done; exec {sys.executable} rank.py"
    (tmp_path / "msrun").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(RANK)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MS_SCHED_PORT": "1"}
    command = [sys.executable, "msrun", "--join=True", late, late]
    launcher = subprocess.Popen(command, cwd=tmp_path, env=environment)
    while len(started := psutil.Process(launcher.pid).children()) < 4:
        assert launcher.poll() is None
    launcher.kill()
    launcher.wait()
    (tmp_path / "go").touch()
    try:
        assert (psutil.wait_procs(started, SECONDS)[1] == []) is ends
        said = "rank 1 ends: msrun, which started it, ended before it could be watched\n"
        assert (tmp_path / "log.1").read_text() == said * ends
    finally:
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def test_ranks_that_nobody_waits_for_stay(tmp_path):
    """With --join=False, msrun's default, ranks live on when msrun ends, which it does once they have started."""
    launcher, _ = start(tmp_path, "--join=False", "exec RANK")
    launcher.wait()
    (rank,) = (psutil.Process(int(file.read_text())) for file in tmp_path.glob("pid.*"))
    try:
        assert psutil.wait_procs([rank], 1.0)[1] == [rank] and (tmp_path / "log.0").read_text() == ""
    finally:
        rank.kill()
