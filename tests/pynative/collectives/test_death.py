"""Ranks that die, fail, stop or come late: the others are told who, at once, and nothing is left behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from pynative.collectives import PeerLate, PeerLost, Recv, Send, connect
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.distributed import Failed, outcomes, run

JOB = ROOT / "tests/support/msrun_job.py"
AT_ONCE = 30
"""Seconds within which ranks end after a death, on a machine however busy: half the time-out."""
MSRUN = shutil.which("msrun") or str(Path(sys.executable).with_name("msrun"))


OPERATIONS = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "barrier": lambda group, x: group.barrier(),
    "recv": lambda group, x: group.recv((3,), ms.float32, 1),
    "send": lambda group, x: [group.send(x, 1) for _ in range(200)],
    "batch": lambda group, x: [work.wait() for work in group.batch_send_recv([Send(x, 1), Recv((1,), ms.int32, 1)])],
}


def lose_rank_one(backend):
    """Rank 1 kills itself; operation -> (error's text, ranks that it names, seconds until it came), each on a
    connection of its own."""
    x = ms.Tensor(np.ones(300_000, np.float32))
    connections = {name: connect(address=f"lose-{name}", timeout_minutes=1) for name in OPERATIONS}
    for own in connections.values():
        own.world.all_reduce(x)
    if backend.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = {}
    for name, own in connections.items():
        start = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            OPERATIONS[name](own.world, x)
        seen[name] = str(caught.value), caught.value.ranks, time.monotonic() - start
    return seen


class OfAScript(PeerLost):
    """An error of a script's own."""


def fail_on_rank_one(backend):
    """The kind and text of the errors that rank 0 is told when rank 1 fails with a long coloured text, and with an
    error of a script's own class."""
    told = []
    for name, error in (("long", RuntimeError("\x1b[31mred\x1b[0m\n" * 600)), ("own", OfAScript("mine", range(500)))):
        own = connect(address=f"fail-{name}", timeout_minutes=1)
        if backend.rank == 1:
            own.fail(error)
            continue
        with pytest.raises(PeerLost) as caught:
            own.world.barrier()
        told.append((type(caught.value).__name__, str(caught.value)[:50], len(caught.value.ranks)))
    return told


def test_any_error_of_a_rank_reaches_the_others():
    """A text whose characters take many bytes in JSON is cut; an error of a class that the others do not know is told
    as the nearest that they do, with its first ranks."""
    (long, own), _ = run(2, fail_on_rank_one)
    assert long[0] == "PeerFailed" and long[1].startswith("rank 1") and "RuntimeError: \x1b[31m" in long[1]
    assert own == ("PeerLost", "mine", 100)


def shared_memory() -> set[str]:
    """Names in /dev/shm, without semaphores of Python's process pools, which tests that run beside these have."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def test_a_killed_rank_is_named_at_once_in_every_operation():
    """Each operation names a rank that got SIGKILL within AT_ONCE seconds; no shared memory or socket is left."""
    before = shared_memory()
    first, second, third = outcomes(3, lose_rank_one)
    assert isinstance(second, Failed)
    for name in OPERATIONS:
        for text, ranks, seconds in (first[name], third[name]):
            assert ranks == (1,) and "rank 1 (pid " in text and "test_death.py:" in text
            assert seconds < AT_ONCE
    assert shared_memory() <= before
    sockets = Path("/proc/net/unix").read_text()
    assert not [name for name in OPERATIONS if f"-lose-{name}" in sockets] and f"-tests-{os.getpid()}-" not in sockets


def die_while_meeting(backend, address):
    if backend.rank == 1:
        os._exit(3)
    with pytest.raises(PeerLost) as caught:
        connect(address=address, timeout_minutes=3 / 60)
    return str(caught.value)


def test_a_rank_that_never_comes_to_the_meeting_is_named():
    """A rank that ends before it connects is named by rank 0 at the time-out; rank 2 learns that rank 0 gave up."""
    first, _, third = outcomes(3, die_while_meeting, "no-meeting")
    assert "[1] of 3 never came" in first
    assert "rank 0 ended, or gave up on another rank" in third


def come_late(backend, address):
    """Rank 1 stays away from a barrier for longer than the time-out; the text of the PeerLate that each rank gets."""
    own = connect(address=address, timeout_minutes=2 / 60)
    own.world.barrier()
    if own.rank == 1:
        backend.world.barrier()
    with pytest.raises(PeerLate) as caught:
        own.world.barrier()
    if own.rank == 0:
        backend.world.barrier()
    assert not own.standing()[0]
    own.close()
    return str(caught.value)


def test_a_late_rank_is_named_at_the_time_out():
    """PeerLate on both ranks names the rank that waits in a barrier beyond the time-out, and the one it waits for;
    after it neither rank counts as waiting."""
    for text in run(2, come_late, "late"):
        assert "rank 0 waited in barrier" in text and "for rank 1 (pid " in text and "in no collective" in text


def claim_wrongly(backend, address):
    """Ranks that connect with different world sizes, then a rank beyond the size, addresses that cannot be and unknown
    backends: each an error that names it."""
    with pytest.raises(ValueError, match="RANK_SIZE"):
        connect(rank=backend.rank, world_size=2 + backend.rank, address=address, timeout_minutes=0.1)
    backend.world.barrier()
    if backend.rank == 0:
        with pytest.raises(ValueError, match="is not below"):
            connect(rank=2, world_size=2, address=address)
        for address, wrong in (
            ("tcp://192.0.2.1:8848", "does not have that address; start the host of --master_addr with --node_rank 0"),
            ("tcp://127.0.0.1:", "a port from 1 to 65535"),
            ("tcp://no-such-host.invalid:8848", "no such host is known here"),
        ):
            with pytest.raises(ValueError, match=wrong):
                connect(rank=0, world_size=2, address=address)
        with pytest.raises(ValueError, match=r"--master_addr 192[.]0[.]2[.]1"), pytest.MonkeyPatch.context() as patch:
            patch.setenv("MS_SCHED_HOST", "192.0.2.1")
            patch.setenv("MS_SCHED_PORT", "8848")
            connect()
        with pytest.raises(ValueError, match="shared_memory, native"):
            connect("mpi")
        with pytest.raises(ValueError, match="HCCL connects Ascends alone"):
            connect("native", rank=0, world_size=1)


def test_jobs_that_do_not_fit_are_refused():
    """World sizes that differ, a rank beyond the size, wrong addresses, unknown backends: ValueErrors naming them."""
    run(2, claim_wrongly, "claims")


def fail_inside(backend, address):
    """An error inside a call on rank 0 (an interrupt while it waits) is told on rank 1, and further calls on both raise
    PeerLost."""
    own = connect(address=address)
    if own.rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            own.world.recv((2,), ms.float32, 1)
    backend.world.barrier()
    with pytest.raises(PeerLost, match=r"rank 0 .* failed: KeyboardInterrupt"):
        own.world.barrier()
    own.close()


def test_an_error_inside_a_call_does_not_corrupt_later_ones():
    """An interrupt inside rank 0's recv is told on rank 1, and every later call on both ranks raises PeerLost."""
    run(2, fail_inside, "inside")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def msrun(mode: str, folder: Path, kill: bool = False) -> tuple[int, float, list[str], str]:
    """(exit code, seconds from rank 1's misfortune to the end, the ranks' logs, the job's output) of a job of two
    ranks. kill: real processes, and rank 1 gets SIGKILL; else warm forks."""
    command = [
        MSRUN if kill else str(warm.programs() / "msrun"),
        "--worker_num=2",
        "--local_worker_num=2",
        f"--master_port={free_port()}",
        "--join=True",
    ]
    command += [f"--log_dir={folder}/log", str(JOB), mode, f"{folder}/pid"]
    path = Path(sys.executable).parent if kill else warm.programs()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    environment |= {"PATH": f"{path}:{os.environ['PATH']}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    job = subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)
    try:
        if kill:
            os.kill(_pid(folder / "pid.1"), signal.SIGKILL)
        else:
            _pid(folder / "pid.1")
        start = time.monotonic()
        printed, _ = job.communicate(timeout=200)
    finally:
        job.kill()
    logs = [(folder / "log" / f"worker_{rank}.log").read_text() for rank in range(2)]
    return job.returncode, time.monotonic() - start, logs, printed


def _pid(file: Path) -> int:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            time.sleep(0.05)
            return int(file.read_text())
    raise TimeoutError(f"{file} was not written")


class TestUnderMsrun:
    """Ranks that die or fail in a job under msrun, as users start it: exit code, time, and each rank's log."""

    def test_good_job_ends_with_zero(self, tmp_path):
        """A job without an error ends under msrun with status 0 after all steps on both ranks."""
        code, _, logs, printed = msrun("good", tmp_path)
        assert code == 0, printed
        assert all("all steps done" in log for log in logs)

    def test_an_error_on_one_rank_ends_the_job_with_its_traceback(self, tmp_path):
        """An exception on rank 1 ends the job at once: its traceback is in rank 1's log, one line of it in rank 0's."""
        code, seconds, logs, printed = msrun("raise", tmp_path)
        assert code != 0 and seconds < AT_ONCE
        assert "KeyError: 'the root of it all'" in logs[1] and "misbehave" in logs[1]
        assert "Traceback" not in logs[0] and "rank 1" in logs[0] and "KeyError" in logs[0]
        assert printed.index("rank 1 failed:") < printed.index("rank 0 ends:")

    def test_kill_9_of_a_rank_ends_the_job_and_names_it(self, tmp_path):
        """SIGKILL of rank 1 ends the job at once with an error; rank 0's log names the rank and its process id."""
        code, seconds, logs, _ = msrun("wait", tmp_path, kill=True)
        assert code != 0 and seconds < AT_ONCE
        pid = (tmp_path / "pid.1").read_text()
        assert f"rank 1 (pid {pid}) ended" in logs[0] and "Traceback" not in logs[0]
