"""The threads that host kernels run on: a pool of our own, which shares out blocks of rows and other tasks.

BLAS's own threads speed up matrix products only, and sleep through everything between them. Splitting rows ourselves
makes norms, activations, softmax and the optimizer parallel too.

But for the products of linear layers and experts, operators' results don't depend on the number of threads: the blocks
of a reduction are fixed by the shape, only who computes them varies. Each of those products is cut into at most as
many spans as there are threads, so results agree to rounding: a library may sum in another order for another number of
rows (docs/mindspore.md).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.spinning import AwakeHelper, Job, can_spin, error_of

BLOCK_BYTES = 1024 * 1024
"""Bytes of an elementwise block. Smaller ones stay in level 2 of the cache, but one thread is no faster with them, and
two hand the GIL to each other so often that they are slower than one."""

MATMUL_ROWS = 32
"""Spans of a split matrix product are multiples of this, so that BLAS uses the same inner kernel in each."""

MATMUL_WORK = 4_000_000
"""Multiply-adds of a product below which another thread costs more than it brings (about 0.1 ms)."""

Spans = tuple[tuple[int, int], ...]
"""(start, stop) of consecutive rows."""

Handed = tuple[Job, "SimpleQueue[BaseException | None]"]
"""(job for a thread, queue that gets its error or None when it has ended)."""

_jobs: SimpleQueue[Handed] = SimpleQueue()
_threads = 1
_workers: list[Thread] = []
_awake: dict[int, list[AwakeHelper]] = {}
"""Id of a thread that is within `awake` -> the helpers that wait for its jobs."""


def set_threads(count: int) -> None:
    """Let host kernels of this process use at most `count` threads, the calling one included. Raises ValueError for a
    count below 1."""
    global _threads
    if count < 1:
        raise ValueError(f"threads is {count}: host kernels need at least 1 thread")
    while len(_workers) < count - 1:
        _workers.append(Thread(target=_serve, args=(_jobs,), name=f"kernels-{len(_workers) + 1}", daemon=True))
        _workers[-1].start()
    _threads = count


def thread_count() -> int:
    """The most threads that host kernels use, the calling one included: 1 before `set_threads`."""
    return _threads


def _serve(jobs: SimpleQueue[Handed]) -> None:
    while True:
        drain, finished = jobs.get()
        finished.put(error_of(drain))


def _forget_workers() -> None:
    """Forget the threads after a fork: they don't survive it, so the child starts its own."""
    global _jobs
    _jobs = SimpleQueue()
    _workers.clear()
    _awake.clear()
    set_threads(_threads)


os.register_at_fork(after_in_child=_forget_workers)


def _drain(work: Callable[..., None], tasks: Iterable[tuple[Any, ...]]) -> None:
    """Call `work(*task)` for each task, with numpy's floating-point warnings off.

    Overflow to inf and 1/inf are part of sigmoid written with exp, so numpy is not to report them. That is
    `np.errstate(all="ignore")`, which takes longer than a small operator's arithmetic.
    """
    buffer_size, reported, callback = before = np.geterrobj()
    if reported:
        np.seterrobj([buffer_size, 0, callback])
    try:
        for task in tasks:
            work(*task)
    finally:
        if reported:
            np.seterrobj(before)


def run(work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> None:
    """Call `work(*task)` for every task, over the threads; tasks are begun in order by whichever thread is free. If
    tasks raise errors, one of these is raised here when no task is under way; others may then not have been begun."""
    helpers = min(_threads, len(tasks)) - 1
    if helpers <= 0:
        return _drain(work, tasks)
    # `next` of a list's iterator is atomic under the GIL.
    drain = partial(_drain, work, iter(tasks))
    return together([drain] * (helpers + 1))


def together(jobs: Sequence[Job]) -> None:
    """Do jobs, at least one and at most as many as threads, at the same time where threads are free, the first in the
    calling thread. While another thread is within `awake` the calling thread does all of them. If jobs raise errors,
    one of these is raised, once all jobs have ended."""
    for error in _errors_awake(jobs) if _awake else _errors(jobs):
        if error is not None:
            raise error


def _errors(jobs: Sequence[Job]) -> list[BaseException | None]:
    finished = SimpleQueue[BaseException | None]()
    for job in jobs[1:]:
        _jobs.put((job, finished))
    return [error_of(jobs[0])] + [finished.get() for _ in jobs[1:]]


def _errors_awake(jobs: Sequence[Job]) -> list[BaseException | None]:
    helpers = _awake.get(get_ident())
    if helpers is None:  # the caller is not the thread that keeps helpers awake
        return [error_of(job) for job in jobs]
    busy = helpers[: len(jobs) - 1]
    for helper, job in zip(busy, jobs[1:], strict=True):
        helper.hand(job)
    return [error_of(jobs[0])] + [helper.finish() for helper in busy]


@contextmanager
def awake() -> Iterator[None]:
    """Let the other threads wait for the calling thread's jobs without sleeping, within the `with` block, which is to
    be short. No effect with one thread, while this or another thread is within `awake`, or where the C library has no
    spin locks."""
    if _threads == 1 or _awake or not can_spin():
        yield
        return
    helpers = [AwakeHelper() for _ in range(_threads - 1)]
    for helper in helpers:
        _jobs.put((helper.serve, SimpleQueue()))
    _awake[get_ident()] = helpers
    try:
        yield
    finally:
        _awake.clear()
        for helper in helpers:
            helper.hand(None)


@lru_cache(maxsize=1024)
def spans(rows: int, size: int) -> Spans:
    """(start, stop) of consecutive spans of at most `size` rows, from row 0 on, that cover `rows` rows; none for 0."""
    return tuple((start, min(start + size, rows)) for start in range(0, rows, size))


def row_blocks(rows: int, row_bytes: int) -> Spans:
    """Consecutive spans that cover `rows` rows of `row_bytes` bytes, each of at most BLOCK_BYTES or of one row; they
    depend on the two numbers alone."""
    return spans(rows, max(1, BLOCK_BYTES // max(row_bytes, 1)))


def by_rows(work: Callable[..., None], *arrays: Array | None) -> None:
    """Call `work` with views of the same rows of all arrays, a block at a time, over the threads. The first array
    [r, c], not None, gives the rows of a block (`row_blocks`, 4 bytes an element); for an array that is None `work`
    gets None."""
    first = arrays[0]
    assert first is not None

    def block(start: int, stop: int) -> None:
        work(*[None if array is None else array[start:stop] for array in arrays])

    run(block, row_blocks(len(first), first.shape[1] * 4))


def sum_by_rows(work: Callable[..., None], *arrays: Array | None, parts: int = 1) -> Array:
    """The sums, float32 [parts, c], of what `work` adds up over the rows of all blocks.

    `work` is called with views of the same rows of all arrays, a block at a time, over the threads, and behind them
    with `parts` arrays of zeros, float32 [c], to which it adds sums over its rows. The first array [r, c], not None,
    gives the rows of a block (`row_blocks`, 4 bytes an element); for an array that is None `work` gets None.
    """
    first = arrays[0]
    assert first is not None
    blocks = row_blocks(len(first), first.shape[1] * 4)
    sums = np.zeros((parts, len(blocks), first.shape[1]), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        work(*[None if array is None else array[start:stop] for array in arrays], *sums[:, index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return sums.sum(axis=1)


def matmul_spans(rows: int, multiply_adds: int) -> Spans:
    """Spans of a product's `rows` result rows: at most one for each thread, each but the last a multiple of MATMUL_ROWS
    rows; at most one if the whole product has fewer than MATMUL_WORK multiply-adds."""
    parts = _threads if multiply_adds >= MATMUL_WORK else 1
    size = -(-rows // parts)
    return spans(rows, max(MATMUL_ROWS, -(-size // MATMUL_ROWS) * MATMUL_ROWS))
