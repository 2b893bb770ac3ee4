"""Work on items in processes, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_ITEMS_AT_ONCE = 8
_AHEAD = 4
"""Chunks for each worker by which reading runs ahead of writing: the input may be larger than the memory."""

_function: Callable[[Any], Any] | None = None


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function


def _run(items: list[Any]) -> list[Any]:
    assert _function is not None
    return [_function(item) for item in items]


def in_workers(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`function` of each item, in order; by `workers` processes, or this one when it is 1.

    function: picklable; it is sent once, not with every item.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    remaining = iter(items)
    # Spawned, not forked: the caller may hold threads and locks.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, (function,)) as pool:
        pending: deque[Future[list[Result]]] = deque()
        while chunk := list(islice(remaining, _ITEMS_AT_ONCE)):
            pending.append(pool.submit(_run, chunk))
            if len(pending) >= workers * _AHEAD:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
