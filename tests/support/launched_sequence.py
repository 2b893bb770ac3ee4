"""Drawn runs over one folder, each launched by msrun: `python -m tests.support.launched_sequence [--runs 200]`.

What `tests/pynative/checkpointing/test_run_sequence.py` does in one process, with jobs of two tensor-parallel ranks
that are really killed (all their processes, or a rank), and really meet (one stands still while the other is started).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit, lock
from pynative.startup.launch import msrun_command, quiet_environment
from tests.support.assets import ROOT
from tests.support.engine import TINY
from tests.support.run_sequence import LAST, MOST_STEPS, Ledger, Plan, checksums, draw, refusal, tree

SCRIPT = ROOT / "examples" / "gpt" / "pretrain_gpt.py"
FLAGS = (
    f"{TINY} --tensor-model-parallel-size 2 --mock-data --global-batch-size 4 --train-iters 1000 --split 1,0,0 "
    "--lr-decay-style cosine --use-distributed-optimizer --log-interval 1"
)
LIMIT_SECONDS = 300.0


class Job:
    """A job launched by msrun in a session of its own; `log` is its first rank's."""

    def __init__(self, flags: list[str], logs: Path) -> None:
        self.log = logs / "worker_0.log"
        command = msrun_command(SCRIPT, [*FLAGS.split(), *flags], 2, logs)
        environment = quiet_environment() | {"PYTHONPATH": str(ROOT)}
        logs.mkdir(parents=True)
        with (logs / "msrun.log").open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=logs, start_new_session=True
            )

    def wait(self) -> int:
        """Wait for the job to end; msrun's exit code."""
        return self.process.wait(LIMIT_SECONDS)

    def rank_0(self, root: Path) -> int | None:
        """The process id of the rank that holds the folder, once one does; None if the job ended first."""
        while self.process.poll() is None:
            held = lock.holder(root)
            if held is not None and held.pid in self.processes():
                return held.pid
            time.sleep(0.01)
        return None

    def processes(self) -> list[int]:
        """Process ids of msrun and all its descendants."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def kill(self, pids: list[int]) -> None:
        """Kill these processes at once, and wait until none is left."""
        everybody = self.processes()
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        self.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in everybody):
            assert time.monotonic() < deadline, f"left: {everybody}"
            time.sleep(0.02)

    def said(self) -> list[str]:
        """The lines of the first rank's log."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class Launches:
    """Executes drawn plans as msrun jobs of two ranks, and notes them in the ledger."""

    def __init__(self, folder: Path, random: np.random.Generator, ledger: Ledger, reference: Path) -> None:
        self.random, self.ledger, self.reference = random, ledger, reference
        self._logs = (folder / "logs" / str(number) for number in count(1))

    def execute(self, plan: Plan) -> None:
        """Run a plan as a job, check how it ended, and check the folder against the ledger."""
        root, told, before = self.ledger.root, refusal(plan, self.ledger.root), tree(self.ledger.root)
        job, came_to = Job(plan.flags, next(self._logs)), plan.kind
        if told:
            assert job.wait() != 0 and any(told in line for line in job.said()), job.log
            assert tree(root) == before
            came_to = "refused"
        elif plan.is_killed:
            came_to = "killed" if self._kill(job) else plan.kind
        elif plan.meets:
            self._meet(job)
            came_to = "met"
        code = job.wait()
        self.ledger.listen(plan, job.said())
        if came_to in (plan.kind, "met"):
            assert code == 0, job.log
            self.ledger.finished(plan)
        self.ledger.tally[came_to] += 1
        self.ledger.check()

    def _kill(self, job: Job) -> bool:
        """Kill all processes of the job, or one of its ranks, at a drawn moment after it holds the folder; False if it
        had ended."""
        rank_0 = job.rank_0(self.ledger.root)
        time.sleep(float(self.random.uniform(0, 1.5)))
        everybody = job.processes()
        ranks = [pid for pid in everybody if _is_rank(pid)]
        one = [rank_0] if rank_0 and self.random.integers(2) else ranks[-1:]
        job.kill(everybody if self.random.integers(2) else one)
        return job.wait() != 0

    def _meet(self, first: Job) -> None:
        """Start a second job on the folder while the first is stopped, and check that it is kept out."""
        root = self.ledger.root
        rank_0 = first.rank_0(root)
        assert rank_0 is not None, first.log
        _signal(rank_0, signal.SIGSTOP)
        before = tree(root)
        second = Job(draw(self.random, root, self.reference, False).flags, next(self._logs))
        code = second.wait()
        after = tree(root)
        _signal(rank_0, signal.SIGCONT)
        said = second.said()
        assert code != 0 and any(f"is in use: process {rank_0} on" in line or "nowhere" in line for line in said), said
        assert after == before
        first.wait()


def _is_rank(pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"MS_ROLE=MS_WORKER" in environment and b"pretrain_gpt.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def main(argv: list[str]) -> None:
    """Run the drawn sequence and print how many runs came to which end."""
    made = argparse.ArgumentParser("python -m tests.support.launched_sequence", description=__doc__)
    made.add_argument("--runs", type=int, default=200)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--folder", help="a new one, which stays")
    options = made.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder, last, began = Path(options.folder or name), LAST + MOST_STEPS, time.monotonic()
        reference = folder / "reference"
        flags = ["--save", str(reference), "--save-interval", "1", "--exit-interval", str(last)]
        job = Job(flags, folder / "logs" / "reference")
        assert job.wait() == 0, "\n".join(job.said())
        rows = [json.loads(line) for line in (reference / commit.METRICS).read_text().splitlines()]
        expected = [checksums(reference / commit.checkpoint_name(number)) for number in range(1, last + 1)]
        ledger = Ledger(folder / "save", expected, [row["loss"] for row in rows])
        ledger.root.mkdir()
        random = np.random.default_rng(options.seed)
        launches = Launches(folder, random, ledger, reference)
        for number in range(options.runs):
            plan = draw(random, ledger.root, reference, number == 0)
            print(f"{number + 1:4} {time.monotonic() - began:6.0f} s  {plan.kind:16}", end="", flush=True)
            launches.execute(plan)
            print(f"{len(ledger.promises):4} checkpoints promised and there  {dict(ledger.tally)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
