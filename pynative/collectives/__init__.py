"""Collectives between the ranks of a job, on one interface with two backends: for CPUs memory that the ranks of a host
share, and TCP between hosts; HCCL on an Ascend. `connect()` gives the Backend; `backend.group(ranks)` a Group.

interface.py lists the operations; wire/shared_memory.py says how they work, wire/mailbox.py and wire/arena.py describe
the memory, wire/waiting.py waiting and what can go wrong in it, ledger.py what ranks must agree on.
"""

import mindspore as ms

from parallel_core.system.environment import is_scheduler
from pynative.collectives.cpu import SharedMemoryBackend
from pynative.collectives.engine import Completed, Handle
from pynative.collectives.errors import CollectiveError, CollectiveMismatch, PeerFailed, PeerLate, PeerLost
from pynative.collectives.interface import Backend, Group, Recv, Send
from pynative.collectives.meeting.address import address_from_environment
from pynative.collectives.trace import Trace

BACKENDS = ("shared_memory", "native")


def connect(
    backend: str = "shared_memory",
    *,
    rank: int | None = None,
    world_size: int | None = None,
    address: str | None = None,
    timeout_minutes: float = 10.0,
) -> Backend:
    """Meet the other ranks of the job, and return the connection to them. Rank, size and address not given come from
    msrun's environment; with "native" (HCCL) all three do, given or not.

    `address` is a short text that the ranks of the job share and no other job on this host has, or `tcp://HOST:PORT` of
    rank 0 if ranks may live on several hosts. Raises ValueError for another backend than "shared_memory" and "native",
    for "native" without an Ascend, and on CPUs for a rank, size or address that cannot be right or clashes with another
    rank's (an address too long for a Unix socket's name is a ValueError on rank 0, an OSError on the others), and for
    more than 200 ranks on a host; on CPUs PeerLost (or its subclass PeerLate) if a rank does not come within
    `timeout_minutes`, or ends meanwhile.
    """
    if backend not in BACKENDS:
        raise ValueError(f"--collectives {backend}: choose from {', '.join(BACKENDS)}")
    if backend == "shared_memory":
        return SharedMemoryBackend(address_from_environment(rank, world_size, address, timeout_minutes))
    if ms.get_context("device_target") != "Ascend":
        raise ValueError("--collectives native: HCCL connects Ascends alone; on a CPU leave it out")
    from pynative.collectives.hccl import HcclBackend

    return HcclBackend(timeout_minutes)
