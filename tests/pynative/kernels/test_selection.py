"""Choosing an implementation of the kernels, and the thread pool of `host`."""

import threading

import pytest

from parallel_core.config.fused import FusedOperators
from pynative import kernels
from pynative.kernels.host import blas, threads
from pynative.startup import device


def test_use_selects_for_the_process():
    """`kernels.use` selects an implementation by name, and without a name a CPU's default, `host`."""
    kernels.use("ops")
    assert kernels.active() == "ops"
    kernels.use()
    assert kernels.active() == "host", "a CPU's default"


@pytest.mark.parametrize(("arguments", "message"), [(("torch",), "choose one of host, ops"), (("host", 0), "threads")])
def test_wrong_choices_are_refused(arguments, message):
    """An unknown implementation, or 0 threads, is a ValueError of `kernels.use` that says so."""
    with pytest.raises(ValueError, match=message):
        kernels.use(*arguments)


def test_every_task_runs_once_and_on_several_threads():
    """`threads.run` on two threads runs each of 50 tasks once, and two of them at the same time."""
    threads.set_threads(2)
    seen, names, both = [], set(), threading.Barrier(2, timeout=20)

    def work(index):
        if index < 2:
            both.wait()  # passes only if two threads are in it at the same time
        seen.append(index)
        names.add(threading.current_thread().name)

    threads.run(work, [(i,) for i in range(50)])
    assert sorted(seen) == list(range(50)) and len(names) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_in_a_task_reaches_the_caller(count):
    """`threads.run` on one or two threads raises the exception of a task, and runs later tasks."""
    threads.set_threads(count)

    def work(index):
        if index == 3:
            raise RuntimeError("task 3")

    with pytest.raises(RuntimeError, match="task 3"):
        threads.run(work, [(i,) for i in range(9)])
    done = []
    threads.run(lambda i: done.append(i), [(1,), (2,)])
    assert sorted(done) == [1, 2], "the pool works on after an error"


@pytest.mark.parametrize("rows", [0, 1, 31, 33, 100])
def test_spans_cover_all_rows_once(rows):
    """`row_blocks` and `matmul_spans` have each row once and in order, also of no rows."""
    threads.set_threads(2)
    for spans in (threads.row_blocks(rows, 10_000), threads.matmul_spans(rows, 10**9)):
        assert [i for start, stop in spans for i in range(start, stop)] == list(range(rows))


def test_numpy_computes_with_one_blas_thread():
    """BLAS uses one thread under `host`: the pool splits the work, and BLAS's own threads would compete for
    the cores."""
    assert blas.set_blas_threads(1), "no OpenBLAS found in this process"


def test_the_device_is_prepared_with_the_fused_operators():
    """`device.initialize` selects the fused operators that it is given, as training, generation and scripts do by
    flags."""
    device.initialize("CPU", "ops", 1, 1)
    composed = kernels.attention
    device.initialize("CPU", "ops", 1, 1, FusedOperators(("attention",)))
    assert kernels.attention is not composed
    assert kernels.attention.__module__ == "pynative.kernels.ops.blocked_attention"


@pytest.mark.parametrize(
    ("target", "operators", "expected"),
    [("CPU", ("attention", "rms_norm"), "flash attention, RMS norm"), ("CPU", (), None), ("Ascend", ("rotary",), None)],
)
def test_a_device_without_fused_operators_says_so(target, operators, expected):
    """`fused_notice` names the fused operators asked for on a CPU; without any, or on an Ascend, it is None."""
    notice = device.fused_notice(target, FusedOperators(operators))
    assert notice is None if expected is None else notice.endswith(f"form for: {expected}")
