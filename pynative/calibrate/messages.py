"""Seconds of collectives and sends between two processes of this host, by operation and bytes."""

import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np

from parallel_core.messages import BYTES_SENT
from pynative.collectives import Group

BYTES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""The sizes of a rank's input, in bytes, for which messages are measured."""
SECONDS, MOST = 0.2, 300
"""Seconds spent on one operation and size, and the most calls in them: small messages are disturbed easily."""


def _exchange(group: Group, x: Any) -> None:
    """Send x from rank 0 to rank 1 and back."""
    if group.rank == 0:
        group.send(x, 1)
        group.recv(x.shape, x.dtype, 1)
    else:
        group.recv(x.shape, x.dtype, 0)
        group.send(x, 0)


CALLS: dict[str, tuple[Callable[[Group, Any], Any], int]] = {
    "all_reduce": (lambda group, x: group.all_reduce(x, out=x), 1),
    "all_gather": (lambda group, x: group.all_gather(x), 1),
    "reduce_scatter": (lambda group, x: group.reduce_scatter(x), 1),
    "all_to_all": (lambda group, x: group.all_to_all(x), 1),
    "send": (_exchange, 2),
}
"""Operation -> (a call of it on a group and a tensor, the number of messages that follow one another in the call)."""


def measured(group: Group) -> dict[str, list[list[float]]]:
    """Operation ("all_reduce", ..., "send") -> a list of [bytes that a rank sends, seconds of one message in the
    fastest call], one for each of `BYTES`, ascending; a smaller size has at most the time of a larger. Both ranks of
    `group` call this."""
    found: dict[str, list[list[float]]] = {}
    for operation, (call, messages) in CALLS.items():
        found[operation] = []
        for size in BYTES:
            x = ms.from_numpy(np.zeros(size // 4, np.float32))
            sent = BYTES_SENT[operation](size if operation != "all_to_all" else size // 2, 2, 0)
            found[operation].append([float(sent), _fastest(group, call, x) / messages])
        found[operation] = _rising(found[operation])
    return found


def _fastest(group: Group, call: Callable[[Group, Any], Any], x: Any) -> float:
    """Seconds of the fastest of several calls, each of which both ranks begin together."""
    start = time.perf_counter()
    call(group, x)
    rounds = np.array([min(MOST, 5 + SECONDS / (time.perf_counter() - start))], np.int32)
    seconds = []
    for _ in range(int(group.broadcast(ms.from_numpy(rounds), 0).asnumpy()[0])):
        group.barrier()
        start = time.perf_counter()
        call(group, x)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _rising(points: list[list[float]]) -> list[list[float]]:
    """The points, changed so that more bytes take no less time: a smaller size that took longer was disturbed."""
    for before in range(len(points) - 2, -1, -1):
        points[before][1] = min(points[before][1], points[before + 1][1])
    return points
