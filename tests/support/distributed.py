"""Run a function on several ranks from a plain pytest function.

    def body(backend, n):                       # at module level: workers import it by name
        return backend.world.all_reduce(ms.Tensor([n], ms.int32)).asnumpy()

    def test_sum():
        assert run(2, body, 3) == [6, 6]

Ranks are processes that are started once, wait idle between calls and end with pytest. Those of a small job are the
first of a larger one's: each keeps a connection for every world size.
Arguments and results are pickled. If any rank raises, the error of the rank that raised first is raised here with its
traceback, and the ranks connect anew for the next call.
"""

import atexit
import contextlib
import functools
import os
import pickle
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

from tests.support import two_hosts
from tests.support.assets import ROOT
from tests.support.warm import ONE_THREAD, Process
from tests.support.warm_client import NETWORK

TIMEOUT_SECONDS = 300.0
"""Seconds in which a call must end, enough for MindSpore's operators and collectives on a machine that is busy
otherwise."""
SECONDARY = ("PeerLost", "PeerLate", "PeerFailed")
"""Kinds of errors that a rank raises because of another rank's error."""

_open = contextlib.ExitStack()
_pools: dict[tuple[int, bool], "Pool"] = {}
_processes: defaultdict[int, list["Worker"]] = defaultdict(list)
"""Started ranks in order. Key 0: those of all jobs of one host; else the world size of a job on two hosts."""


def run(
    world_size: int,
    function: Callable,
    *args: Any,
    timeout: float = TIMEOUT_SECONDS,
    between_hosts: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(backend, *args, **kwargs)` on every rank: the results in order of rank.

    `backend` inside is that rank's connected Backend. A rank that does not answer within `timeout` seconds fails the
    test with the stacks of all such ranks. With `between_hosts` half of the ranks are on another host (`two_hosts`).
    """
    answers = outcomes(world_size, function, *args, timeout=timeout, between_hosts=between_hosts, **kwargs)
    failed = [answer for answer in answers if isinstance(answer, Failed)]
    if failed:
        raise _first_cause(failed)
    return answers


def outcomes(
    world_size: int,
    function: Callable,
    *args: Any,
    timeout: float = TIMEOUT_SECONDS,
    between_hosts: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """As `run`, but a rank that raised or died has a `Failed` as its result."""
    return pool(world_size, between_hosts).run(function, args, kwargs, timeout)


def pool(world_size: int, between_hosts: bool = False) -> "Pool":
    """The pool of worker processes for a world size; those that do not run yet are started."""
    key = (world_size, between_hosts)
    if key not in _pools:
        _pools[key] = Pool(world_size, _two_hosts() if between_hosts else ())
    _pools[key].start()
    return _pools[key]


@functools.cache
def _two_hosts() -> tuple[two_hosts.Host, ...]:
    """Two hosts (network namespaces), made when first needed and removed when the tests end."""
    reason = two_hosts.why_not()
    if reason:
        pytest.skip(reason)
    return _open.enter_context(two_hosts.two_hosts())


@functools.cache
def _folder() -> str:
    """The working folder of all ranks, for files that a test gives no place; it is removed when the tests end."""
    return _open.enter_context(tempfile.TemporaryDirectory())


class RankFailed(AssertionError):
    """A rank raised, died, or did not answer."""


class Worker:
    """One rank's process, the pipe to it, and a file with all that it printed."""

    def __init__(self, rank: int, environment: dict[str, str], network: str):
        self.rank = rank
        self.connection: Connection
        self.connection, theirs = Pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        words = ["-m", "tests.support.distributed_worker", str(theirs.fileno())]
        printed = self.output.fileno()
        descriptors = {1: printed, 2: printed, theirs.fileno(): theirs.fileno()}
        self.process = Process(words, os.environ | environment, _folder(), descriptors, network)
        theirs.close()

    def printed(self, last: int = 6000) -> str:
        """The end of what the worker printed."""
        size = self.output.seek(0, os.SEEK_END)
        return os.pread(self.output.fileno(), last, max(0, size - last)).decode(errors="replace")

    def stop(self) -> None:
        """Kill the process and close its pipe and file."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.output.close()


class Pool:
    """The worker processes of one world size, on one host or two."""

    def __init__(self, world_size: int, hosts: Sequence[two_hosts.Host] = ()):
        self.world_size = world_size
        self.hosts = hosts
        self.job = 0
        self.processes = _processes[world_size if hosts else 0]

    @property
    def workers(self) -> list[Worker]:
        """The workers of this world size, in order of rank."""
        return self.processes[: self.world_size]

    def start(self) -> None:
        """Start the ranks that do not run yet; if one has ended, which all its peers notice, start all anew."""
        if any(worker.process.poll() is not None for worker in self.processes):
            self.stop()
        for rank in range(len(self.processes), self.world_size):
            network = self.hosts[rank * len(self.hosts) // self.world_size].network if self.hosts else NETWORK
            self.processes.append(Worker(rank, _environment(rank, self.hosts), network))

    def run(self, function: Callable, args: tuple, kwargs: dict, timeout: float) -> list[Any]:
        """Call the function on every rank; results in order of rank, `Failed` for a rank that raised or died (see
        `outcomes`)."""
        address = f"tests-{self.workers[0].process.pid}-{self.world_size}-{self.job}"
        call = pickle.dumps((function.__module__, function.__qualname__, args, kwargs))
        order = pickle.dumps((address, self.world_size, call))
        for worker in self.workers:
            worker.connection.send_bytes(order)
        answers = self._collect(timeout)
        if any(isinstance(answer, Failed) for answer in answers):
            self.job += 1  # a new connection
        return answers

    def _collect(self, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        answers: dict[int, Any] = {}
        while len(answers) < len(self.workers):
            silent = [worker for worker in self.workers if worker.rank not in answers]
            ready = wait([worker.connection for worker in silent], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._give_up(silent, timeout)
            for worker in (worker for worker in silent if worker.connection in ready):
                try:
                    answers[worker.rank] = pickle.loads(worker.connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    answers[worker.rank] = self._ended(worker)
        return [answers[worker.rank] for worker in self.workers]

    def _ended(self, worker: Worker) -> "Failed":
        code = worker.process.wait()
        text = f"rank {worker.rank} ended with exit code {code}; it printed:\n{worker.printed()}"
        return Failed(worker.rank, time.time(), "RankFailed", text, None)

    def _give_up(self, silent: list[Worker], timeout: float) -> None:
        """Raises RankFailed with the stacks of the ranks that did not answer, after killing all."""
        for worker in silent:
            worker.process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        stories = [f"--- rank {worker.rank}:\n{worker.printed()}" for worker in silent]
        self.stop()
        ranks = [worker.rank for worker in silent]
        raise RankFailed(f"rank(s) {ranks} did not answer in {timeout:.0f} s\n" + "\n".join(stories))

    def stop(self) -> None:
        """Kill all ranks, those of other world sizes too; the next `run` starts others."""
        while self.processes:
            self.processes.pop().stop()


class Failed:
    """A rank's message that the function raised: its rank, time, error's kind and text, and the pickled error if it can
    be pickled."""

    def __init__(self, rank: int, when: float, kind: str, text: str, error: bytes | None):
        self.rank = rank
        self.when = when
        self.kind = kind
        self.text = text
        self.error = error

    def as_error(self) -> BaseException:
        """The rank's own exception if it can be pickled, with the rank's traceback as a note."""
        try:
            error = pickle.loads(self.error or b"")
        except Exception:
            error = RankFailed(self.kind)
        error.add_note(f"on rank {self.rank}:\n{self.text}")
        return error


def _first_cause(failed: list[Failed]) -> BaseException:
    """The earliest error that is not about another rank's, the others' in a note."""
    ordered = sorted(failed, key=lambda failure: (failure.kind in SECONDARY, failure.when))
    error = ordered[0].as_error()
    for failure in ordered[1:]:
        error.add_note(f"rank {failure.rank} then had {failure.text.strip().splitlines()[-1]}")
    return error


def _environment(rank: int, hosts: Sequence[two_hosts.Host]) -> dict[str, str]:
    master = {two_hosts.MASTER_VARIABLE: hosts[0].address} if hosts else {}
    return ONE_THREAD | master | {"GLOG_v": "3", "RANK_ID": str(rank), "PYTHONPATH": str(ROOT)}


@atexit.register
def stop_all() -> None:
    """Kill the ranks of all pools."""
    for each in _pools.values():
        each.stop()
    _open.close()
