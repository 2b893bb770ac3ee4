"""A job over two hosts, started as users start it: msrun on each. The hosts are network namespaces of this machine.

Two are really launched, the others' processes are forks (`warm`). Guards: hosts are found without a flag; losses are
those of one host, to the bit; a rank that ends, a host that falls silent and a host that never comes end the job on
both hosts, and are named.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pynative.startup.launch import msrun_command, quiet_environment
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.two_hosts import Host, cut_the_cable, two_hosts, why_not
from tests.support.user_scripts import run_script

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

FOREVER = "--train-iters 1000000 --exit-duration-in-mins 3"
"""Flags of a run that lasts until a test ends it; if nobody is left to, for three minutes."""
SCRIPT = ROOT / "examples" / "gpt" / "pretrain_gpt.py"
PORT = 8848
PATIENCE = 150.0
"""Seconds to wait for an event that takes ten on a quiet machine; after more, ranks end of their own accord."""
FLAGS = """--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --micro-batch-size 1 --global-batch-size 4 --train-iters 4 --lr 1e-2 --mock-data --vocab-size 128
    --tokenizer-type NullTokenizer --log-interval 1 --eval-iters 0 --clip-grad 1.0"""


@pytest.fixture
def hosts():
    """Two network namespaces with a cable between them, as two hosts."""
    with two_hosts() as pair:
        yield pair


class Job:
    """A job under msrun on one or two hosts, `ranks` on each; the log of rank r is `folder`/worker_r.log."""

    def __init__(
        self,
        folder: Path,
        hosts: tuple[Host, ...],
        flags: str,
        ranks: int,
        nodes=(0, 1),
        master: str = "",
        script=(),
        is_warm: bool = True,
    ):
        """Only the hosts of `nodes` start; the first one is the master unless its address is given.

        `script`, with its arguments, takes the place of the GPT example and the flags. is_warm: processes are forks,
        whose ranks do not watch msrun.
        """
        self.folder = folder
        folder.mkdir()
        environment = warm.programs_first() if is_warm else quiet_environment()
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        msrun = warm.programs() / "msrun" if is_warm else msrun_command(SCRIPT, [], 1, folder)[0]
        save = ["--save", str(folder / "out"), "--save-interval", "1000000"]
        script = script or [str(SCRIPT), *FLAGS.split(), *flags.split(), *save]
        self.jobs = []
        for node, host in enumerate(hosts):
            if node not in nodes:
                continue
            options = {"worker_num": ranks * len(hosts), "local_worker_num": ranks, "node_rank": node, "join": True}
            options |= {"master_addr": master or hosts[0].address, "master_port": PORT, "log_dir": folder}
            command = [*host.prefix, msrun, *(f"--{name}={value}" for name, value in options.items()), *script]
            with open(folder / f"host_{node}.txt", "w") as output:
                pipes = {"stdout": output, "stderr": output}
                self.jobs.append(subprocess.Popen(command, env=environment, cwd=folder, **pipes))

    def wait(self, seconds: float) -> list[int]:
        """Wait for so many seconds for msrun on each host to end; exit codes in order of host."""
        deadline = time.monotonic() + seconds
        try:
            return [job.wait(max(0.1, deadline - time.monotonic())) for job in self.jobs]
        finally:
            self.stop()

    def stop(self) -> None:
        """End msrun, and with it its ranks, on each host where it still runs."""
        for job in self.jobs:
            if job.poll() is None:
                job.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(10)
                job.kill()

    def process_of(self, rank: int) -> int:
        """The process id of a rank."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # a process may have ended
                environment = (process / "environ").read_bytes().split(b"\0")
                is_rank = f"RANK_ID={rank}".encode() in environment and b"MS_ROLE=MS_WORKER" in environment
                if is_rank and (process / "cwd").resolve() == self.folder.resolve() and _is_python(process):
                    return int(process.name)
        raise LookupError(f"no process of rank {rank}")

    def log(self, rank: int) -> str:
        """The output of a rank."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"worker_{rank}.log").read_text()
        return ""

    def wait_for_step(self, step: int, seconds: float = PATIENCE) -> None:
        """Wait until rank 0 has logged that step; fail after so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if len((self.folder / "out" / "metrics.jsonl").read_text().splitlines()) >= step:
                    return
            assert all(job.poll() is None for job in self.jobs), self.log(0)
            time.sleep(0.1)
        raise TimeoutError(self.log(0))


def _is_python(process: Path) -> bool:
    return process.joinpath("comm").read_text().startswith("python")


def metrics_in(folder: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl, without times."""
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in ("step", "loss", "grad_norm")} for row in rows]


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [("--tensor-model-parallel-size 2", 2), ("--pipeline-model-parallel-size 2", 1)],
    ids=["tp2 in a host, dp2 over hosts", "pp2 over hosts"],
)
def test_losses_are_those_of_one_host(hosts, tmp_path, layout, ranks):
    """tp2 in a host and dp2 over both, or pp2 over both: metrics equal those of as many ranks of the tests' pool on one
    host."""
    one = tmp_path / "one"
    one.mkdir()
    arguments = [*FLAGS.split(), *layout.split(), "--save", str(one / "out"), "--save-interval", "1000000"]
    for code, errors in run(2 * ranks, run_script, SCRIPT, arguments, one):
        assert code == 0, errors
    single = metrics_in(one)
    double = Job(tmp_path / "two", hosts, layout, ranks, is_warm=ranks == 2)
    assert double.wait(PATIENCE) == [0, 0], double.log(0) + double.log(ranks)
    assert len(single) == 4 and single[0]["loss"] > single[3]["loss"] > 0
    assert metrics_in(double.folder) == single


@pytest.mark.parametrize("victim", [1, 2])
def test_a_killed_rank_stops_both_hosts_and_is_named(hosts, tmp_path, victim):
    """SIGKILL of a rank on either host ends msrun on both; the other host's logs name the rank and its address."""
    job = Job(tmp_path / "job", hosts, f"--tensor-model-parallel-size 2 {FOREVER}", 2)
    try:
        job.wait_for_step(2)
        os.kill(job.process_of(victim), signal.SIGKILL)
        start = time.monotonic()
        codes = job.wait(PATIENCE)
    finally:
        job.stop()
    assert all(codes), codes
    print(f"both hosts ended {time.monotonic() - start:.1f} s after the kill")
    other_host = (0, 1) if victim == 2 else (2, 3)
    for rank in other_host:
        log = job.log(rank)
        assert f"rank {rank} ends: rank {victim} (pid " in log and f"on {hosts[victim // 2].address}) ended" in log, log
        assert "Traceback" not in log


def test_the_end_of_one_hosts_msrun_stops_both_hosts(hosts, tmp_path):
    """SIGKILL of one host's msrun: its rank's log says that msrun has ended; the other host's says which rank has."""
    job = Job(tmp_path / "job", hosts, f"--tensor-model-parallel-size 2 {FOREVER}", 1, is_warm=False)
    try:
        job.wait_for_step(2)
        job.jobs[1].kill()
        codes = job.wait(PATIENCE)
    finally:
        job.stop()
    assert all(codes), codes
    assert f"rank 1 ends: msrun (pid {job.jobs[1].pid}), which started it, has ended" in job.log(1), job.log(1)
    assert "rank 0 ends: rank 1 (pid " in job.log(0) and f"on {hosts[1].address}) ended" in job.log(0), job.log(0)


def test_an_error_of_one_rank_is_known_on_the_other_host(hosts, tmp_path):
    """The rank at fault shows its traceback, the others one line that names it."""
    script = [str(ROOT / "tests" / "support" / "msrun_job.py"), "raise", str(tmp_path / "pid")]
    job = Job(tmp_path / "job", hosts, "", 1, script=script)
    assert all(job.wait(PATIENCE))
    assert "rank 1 failed:" in job.log(1) and "KeyError: 'the root of it all'" in job.log(1)
    assert "rank 0 ends: rank 1 (pid " in job.log(0) and "failed: KeyError" in job.log(0), job.log(0)
    assert "Traceback" not in job.log(0)


def test_a_host_that_falls_silent_is_given_up(hosts, tmp_path):
    """A cut cable, over which no rank can say that it ends: the ranks of both hosts end and name those that
    they lost."""
    job = Job(tmp_path / "job", hosts, f"--pipeline-model-parallel-size 2 {FOREVER}", 1)
    try:
        job.wait_for_step(2)
        cut_the_cable(hosts[1])
        codes = job.wait(PATIENCE)
    finally:
        job.stop()
    assert all(codes), codes
    for rank in range(2):
        assert f"rank {1 - rank} (pid " in job.log(rank) and "does not answer" in job.log(rank), job.log(rank)


@pytest.mark.parametrize("present", [0, 1])
def test_a_host_that_never_comes_is_named(hosts, tmp_path, present):
    """A host that starts alone ends at the time-out and names the missing rank, or the address of rank 0."""
    job = Job(tmp_path / "job", hosts, "--distributed-timeout-minutes 0.05", 1, nodes=[present])
    assert all(job.wait(PATIENCE))
    missing = "rank(s) [1] of 2 never came" if present == 0 else "rank 0 never came to tcp://10.77.0.1:8848"
    assert missing in job.log(present) and "--master_addr" in job.log(present), job.log(present)


def test_the_wrong_host_with_node_rank_0_is_refused_at_once(hosts, tmp_path):
    """Starting --node_rank 0 on a host without the master's address ends with an error that says so."""
    job = Job(tmp_path / "job", hosts[::-1], "", 1, nodes=[0], master=hosts[0].address)
    assert all(job.wait(PATIENCE))
    assert "rank 0 runs on this host, which does not have that address" in job.log(0), job.log(0)
