"""Kill training jobs while they save, and see what is left: `python -m tests.support.kills [KIND ...] [--trials 50]`.

Two ranks save after every step. One of them, or both, get SIGKILL at a random moment of a random save. Then the latest
checkpoint must be the one before or the one that was being saved, with the very bytes that a run without accidents has
saved at that step, and the next job goes on with it in the same folder. Ranks that are left must end within 30 s.

Jobs are forked from a process that has imported everything; it never computes itself.
"""

import argparse
import ctypes
import os
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mindspore
import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.reader import CheckpointReader
from pynative.checkpointing.save import Saving
from pynative.collectives import connect
from pynative.training.callbacks import Callback
from pynative.training.callbacks.checkpoint import CheckpointCallback
from tests.support.checkpoint_jobs import KINDS
from tests.support.distributed_worker import PR_SET_PDEATHSIG
from tests.support.end_together import EndTogether
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, pretrain_tiny

COMMON = f"{BATCHES} --train-iters 1000 --lr-decay-iters 1000 --lr-decay-style cosine --hidden-dropout 0.1"
Checksums = dict[str, dict[str, int]]
WORLD = 2
LAST = 24
"""The iteration at which a folder is replaced by a new one."""
LIMIT_SECONDS = 30.0
BEGUN, SAVED, RESUMED = b"b", b"s", b"r"


@dataclass
class Job:
    """A running job: its ranks' process ids, and the events that rank 0 reports over the descriptor `told`."""

    ranks: list[int]
    told: int
    events: list[tuple[bytes, float]] = field(default_factory=list)

    def wait_for(self, event: bytes, times: int) -> None:
        """Wait until rank 0 has reported the event so often."""
        while self.count(event) < times:
            ready, _, _ = select.select([self.told], [], [], 120)
            assert ready and self.listen(), f"no {event!r} came: {self.events}"

    def listen(self) -> bool:
        """Read the reported events; False if no rank is left to report more."""
        told = os.read(self.told, 100)
        self.events += [(told[i : i + 1], time.monotonic()) for i in range(len(told))]
        return bool(told)

    def count(self, event: bytes) -> int:
        """The number of times that the event was reported."""
        return sum(kind == event for kind, _ in self.events)

    def end(self) -> tuple[list[int], float]:
        """Exit codes of all ranks, and the seconds until the last one ended."""
        start, left, codes = time.monotonic(), list(self.ranks), {}
        while left:
            for rank in list(left):
                done, status = os.waitpid(rank, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    left.remove(rank)
            if time.monotonic() - start > 2 * LIMIT_SECONDS:
                for rank in left:
                    os.kill(rank, signal.SIGKILL)
            time.sleep(0.005)
        while self.listen():
            continue
        os.close(self.told)
        return [codes[rank] for rank in self.ranks], time.monotonic() - start


def start(flags: str, output: Path) -> Job:
    """Fork the two ranks of a job; their output goes into the folder."""
    told, tell = os.pipe()
    address = f"kills-{os.getpid()}-{time.monotonic_ns()}"
    ranks = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(told)
                _rank(rank, address, flags, tell, output)
                code = 0
            finally:
                os._exit(code)
        ranks.append(child)
    os.close(tell)
    return Job(ranks, told)


def _rank(rank: int, address: str, flags: str, tell: int, output: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    printed = os.open(output / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.environ |= {"RANK_ID": str(rank), "RANK_SIZE": str(WORLD)}
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()
    with EndTogether(connect(address=address, timeout_minutes=1)) as backend, _telling(tell if rank == 0 else None):
        samples = [Rows()[number % 16] for number in range(4 * (LAST + 10))]
        datasets = {"train_valid_test_datasets_provider": lambda numbers: (samples, None, None)}
        pretrain_tiny(backend, f"{COMMON} {flags}", callbacks=[_Resumed(tell if rank == 0 else None)], **datasets)


class _Resumed(Callback):
    def __init__(self, tell: int | None) -> None:
        self.tell = tell

    def on_train_begin(self, state: Any) -> None:
        if self.tell is not None:
            os.write(self.tell, RESUMED)


@contextmanager
def _telling(tell: int | None) -> Iterator[None]:
    """Within the context saves report over the descriptor when they begin and when they are published."""
    begin, saved = Saving.begin.__func__, CheckpointCallback._saved  # type: ignore[attr-defined]

    def begun_and_told(cls: type, *arguments: Any, **named: Any) -> Saving:
        if tell is not None:
            os.write(tell, BEGUN)
        return begin(cls, *arguments, **named)

    def saved_and_told(*arguments: Any) -> None:
        saved(*arguments)
        if tell is not None:
            os.write(tell, SAVED)

    with (
        patch.object(Saving, "begin", classmethod(begun_and_told)),
        patch.object(CheckpointCallback, "_saved", saved_and_told),
    ):
        yield


def checksums(folder: Path) -> Checksums:
    """Checksums of every tensor in every file of a checkpoint; all bytes are read."""
    reader = CheckpointReader(folder)
    assert reader.damaged_files() == [], folder
    return {name: record.crc32 for name, record in reader.manifest.files.items()}


def reference(flags: str, folder: Path) -> tuple[list[Checksums], float]:
    """(checksums of the checkpoint at each iteration of a run without accidents, usual seconds of a save)."""
    job = start(
        f"{flags} --save {folder} --save-interval 1 --keep-checkpoint-max 999 --exit-interval {LAST + 4}", folder
    )
    job.wait_for(SAVED, LAST + 4)
    codes, _ = job.end()
    assert codes == [0] * WORLD, (folder / "rank_0.log").read_text()[-3000:]
    begun, saved = ([when for kind, when in job.events if kind == event] for event in (BEGUN, SAVED))
    usual = statistics.median(after - before for before, after in zip(begun[1:], saved[1:], strict=False))
    return [checksums(folder / commit.checkpoint_name(number)) for number in range(1, LAST + 5)], usual


@dataclass
class Tally:
    """Counts of the trials whose latest checkpoint was the previous one, or the new one, after the kill."""

    previous: int = 0
    new: int = 0
    in_the_middle: int = 0
    """Trials in which leftovers of an unfinished save were there."""
    slowest: float = 0.0
    """Seconds, most over the trials, until the ranks that were left had ended."""


def trials(kind: str, count: int, everybody: bool, folder: Path, seed: int) -> Tally:
    """Kill `count` jobs of a kind at a random moment of a save, one rank or all of each, and check the latest
    checkpoint; the next job goes on from it."""
    draw, tally = np.random.default_rng(seed), Tally()
    expected, usual = reference(KINDS[kind], _new(folder / "reference"))
    save = folder / "save"
    last = LAST
    for _ in range(count):
        if last >= LAST:
            save, last = _new(save), 0
        flags = f"{KINDS[kind]} --save {save} --load {save} --save-interval 1 --keep-checkpoint-max 2"
        job = start(flags, save)
        job.wait_for(BEGUN, int(draw.integers(1 if last else 2, 4)))
        time.sleep(float(draw.uniform(0, usual)))
        killed = list(range(WORLD)) if everybody else [int(draw.integers(WORLD))]
        for rank in killed:
            os.kill(job.ranks[rank], signal.SIGKILL)
        codes, seconds = job.end()
        assert all((code == -signal.SIGKILL) == (rank in killed) and code for rank, code in enumerate(codes)), codes
        assert seconds < LIMIT_SECONDS, f"{seconds:.1f} s"
        now = int(commit.find(save).name[-7:])
        least, most = last + job.count(SAVED), last + job.count(BEGUN)
        assert least <= now <= most, (least, now, most)
        assert checksums(commit.find(save)) == expected[now - 1], f"iteration {now}"
        tally.in_the_middle += any(save.glob(".*"))
        tally.previous += now < most
        tally.new += now == most
        tally.slowest = max(tally.slowest, seconds)
        last = now
    _goes_on(KINDS[kind], save, last, expected)
    return tally


def _goes_on(flags: str, save: Path, last: int, expected: list[Checksums]) -> None:
    """Check that a job makes two more steps from iteration `last`, with the expected checkpoint, and leaves no stray
    files."""
    job = start(f"{flags} --save {save} --load {save} --save-interval 1 --exit-interval {last + 2}", save)
    codes, _ = job.end()
    assert codes == [0] * WORLD and not list(save.glob(".*")), (save / "rank_0.log").read_text()[-3000:]
    assert (commit.find(save).name, checksums(commit.find(save))) == (
        commit.checkpoint_name(last + 2),
        expected[last + 1],
    )


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def main(argv: list[str]) -> None:
    """Kill the number of jobs asked for, for each kind and victim, and print a line of counts for each."""
    made = argparse.ArgumentParser("python -m tests.support.kills", description=__doc__)
    made.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    made.add_argument("--trials", type=int, default=50)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--folder", help="where the jobs save; for example in main memory, to be faster")
    options = made.parse_args(argv)
    for kind in options.kinds:
        for everybody in (False, True):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                began = time.monotonic()
                tally = trials(kind, options.trials, everybody, Path(folder), options.seed)
            victims = "all ranks" if everybody else "one rank"
            print(
                f"{kind:28} {victims:9} {options.trials} kills: the one before {tally.previous}, the new one "
                f"{tally.new}, in the middle of a save {tally.in_the_middle}; others ended within "
                f"{tally.slowest:.1f} s ({time.monotonic() - began:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
