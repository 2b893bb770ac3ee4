"""Work on items in worker processes; results come in the items' order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_ITEMS_AT_ONCE = 8
_AHEAD = 4
"""The number of chunks (items that are sent together) for each worker by which reading runs ahead of writing: the
input may be larger than the memory."""

_function: Callable[[Any], Any] | None = None


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # There are processes enough: threads of the library in each would only wait for each other.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent ends: else it waits for work for ever, also after the parent was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Block Ctrl-C (SIGINT) in this thread inside the block; it is delivered behind the block, and never to a process
    that is started in it. So the process that reads and writes decides when to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(items: list[Any]) -> list[Any]:
    assert _function is not None
    return [_function(item) for item in items]


def in_workers(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, at_once: int = _ITEMS_AT_ONCE
) -> Iterator[Result]:
    """function(item) for each item, in order; in up to `workers` processes, or in this one when that is 1 or less.

    function: sent to each process once, not with every item; with several processes it, items, results and its errors
    must be picklable.
    at_once: the number of items that are sent together, from 1.
    Raises ValueError when a worker process dies, and passes on what `items` and `function` raise.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    remaining = iter(items)
    # Spawned, not forked: the caller may hold threads and locks.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (function,))
    try:
        pending: deque[Future[list[Result]]] = deque()
        while chunk := list(islice(remaining, at_once)):
            with _interrupts_wait():
                pending.append(pool.submit(_run, chunk))
            if len(pending) >= workers * _AHEAD:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool as error:
        raise ValueError(
            f"--workers {workers}: a worker process was killed, probably for want of memory; give fewer"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
