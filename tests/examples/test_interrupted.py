"""A training under a real msrun that is ended from outside leaves no process: no rank, no msrun, no tail of a log.

`tests/pynative/startup/test_lifetime.py` has the other signals.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from parallel_core.checkpoint import commit
from pynative.startup.launch import free_port
from tests.support.assets import ROOT

FLAGS = """--num-layers 1 --hidden-size 32 --seq-length 32 --global-batch-size 8 --micro-batch-size 1
    --train-iters 1000000 --lr-warmup-iters 0 --mock-data --eval-iters 0 --save-interval 1000000
    --exit-duration-in-mins 3"""
SECONDS = 5.0
"""Seconds within which ranks end after the interruption; a busy machine is given as much again."""


@contextmanager
def training(folder: Path, ranks: int, flags: str = "") -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """Run the example in a session of its own, as on a terminal, and wait until it has trained a step; yield (script,
    all its processes) and kill them at the end."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "OUTPUT": str(folder),
        "NPROC": str(ranks),
        "MASTER_PORT": str(free_port()),
    }
    command = ["bash", str(ROOT / "examples" / "gpt" / "pretrain_gpt.sh"), *FLAGS.split(), *flags.split()]
    with open(folder / "output", "w") as output:
        script = subprocess.Popen(command, env=environment, start_new_session=True, stdout=output, stderr=output)
    started: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 150
        while not _has_trained(folder):
            assert script.poll() is None and time.monotonic() < deadline, (folder / "output").read_text()
            time.sleep(0.1)
        everything = psutil.Process(script.pid).children(recursive=True)
        started = [process for process in everything if process.status() != "zombie"]  # msrun's scheduler is a zombie
        yield script, started
    finally:
        for process in [script, *started]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _has_trained(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return len((folder / "metrics.jsonl").read_text().splitlines()) > 1
    return False


def check_end(started: list[psutil.Process], seconds: float = 2 * SECONDS) -> None:
    """Wait for all these processes to end, for that many seconds; fail if one does not."""
    alive = psutil.wait_procs(started, seconds)[1]
    assert [process.cmdline() for process in alive] == []


def test_sigkill_of_msrun(tmp_path):
    """SIGKILL of msrun alone: all processes end, each rank's log names msrun's process id as the cause, and the
    script's code is 137."""
    with training(tmp_path, 2) as (script, started):
        by_name = sorted(process.name() for process in started)
        assert by_name == ["msrun", "python", "python", "python", "tail"], "launch, two ranks, the first one's log"
        (msrun,) = (process for process in started if process.name() == "msrun")
        msrun.kill()
        check_end(started)
        assert script.wait(SECONDS) == 128 + signal.SIGKILL
    for rank in range(2):
        line = f"rank {rank} ends: msrun (pid {msrun.pid}), which started it, has ended"
        assert line in (tmp_path / "msrun_log" / f"worker_{rank}.log").read_text()


def test_ctrl_c(tmp_path):
    """Ctrl-C on the terminal: the script exits with 130 and does not go on to plot."""
    with training(tmp_path, 1) as (script, started):
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(4 * SECONDS) == 130, (tmp_path / "output").read_text()
        check_end(started)
    assert not (tmp_path / "loss.png").exists()


IN_AN_IMPORT = """
import os, signal, sys, weakref
class Finder:
    def find_spec(self, name, *_):
        if name == "mapping":
            one = {1}
            gone = weakref.ref(one, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del one
sys.meta_path.insert(0, Finder())
"""


def test_ctrl_c_in_an_import(tmp_path):
    """SIGINT while a module is imported, where Python drops the handler's exception ("Exception ignored in"): the
    script exits with 130 and starts no msrun."""
    (tmp_path / "sitecustomize.py").write_text(IN_AN_IMPORT)
    (tmp_path / "msrun").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "msrun").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / "examples" / "gpt" / "pretrain_gpt.sh"), *FLAGS.split()]
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path), "OUTPUT": str(tmp_path / "output")}
    assert subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode == 130
    assert not (tmp_path / "started").exists()


def test_sigterm_of_the_script_asks_for_a_checkpoint(tmp_path):
    """SIGTERM with --exit-signal-handler: the step under way ends, its checkpoint is written, and all processes end."""
    with training(tmp_path, 1, "--exit-signal-handler") as (script, started):
        script.terminate()
        check_end(started, 60)
    assert commit.find(tmp_path).name.startswith("iter_")
    assert "a process was told to end" in (tmp_path / "msrun_log" / "worker_0.log").read_text()


def test_sigkill_of_the_script(tmp_path):
    """SIGKILL of the launch script: the launcher says that it gets SIGTERM, and msrun and all ranks end in time."""
    with training(tmp_path, 1) as (script, started):
        script.kill()
        check_end(started)
    assert "told to end by SIGTERM" in (tmp_path / "output").read_text()
