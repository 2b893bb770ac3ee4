"""A job whose ranks all live on one host: the arena, the engine and the ledger that its groups share."""

import os
import socket
from abc import abstractmethod
from collections.abc import Sequence

from pynative.collectives.arena import Arena
from pynative.collectives.checked import CheckedGroup
from pynative.collectives.engine import Engine
from pynative.collectives.errors import CollectiveMismatch
from pynative.collectives.interface import Backend, Group
from pynative.collectives.rendezvous import Address, meet
from pynative.collectives.shared_memory import SharedMemoryGroup
from pynative.collectives.trace import Trace
from pynative.collectives.waiting import WaitingRoom


def address_from_environment(
    rank: int | None, world_size: int | None, address: str | None, timeout_minutes: float
) -> Address:
    """What is not given comes from RANK_ID, RANK_SIZE, MS_SCHED_HOST and MS_SCHED_PORT, as msrun sets them.

    Raises ValueError if the job spans hosts.
    """
    rank = _number("RANK_ID", 0) if rank is None else rank
    world_size = _number("RANK_SIZE", 1) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK_ID={rank} is not below RANK_SIZE={world_size}; start the ranks with msrun")
    if address is None:
        host = os.environ.get("MS_SCHED_HOST", "127.0.0.1")
        if world_size > 1 and not is_this_host(host):
            raise ValueError(
                f"MS_SCHED_HOST={host} is another host: the shared_memory collectives join ranks of one host; "
                "use --collectives native for a job of several hosts"
            )
        address = f"port-{os.environ.get('MS_SCHED_PORT', os.getppid())}"
    return Address(rank, world_size, address, 60 * timeout_minutes)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is not a number; msrun sets it (with --node_rank on several hosts)")
    return int(text)


def is_this_host(host: str) -> bool:
    """Whether an address is one of this host's own: then, and only then, a socket can be bound to it."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


class HostBackend(Backend):
    """Meets the other ranks when constructed. What carries the data is left to the subclasses."""

    def __init__(self, address: Address):
        self.rank = address.rank
        self.world_size = address.world_size
        self.trace = Trace()
        meeting = meet(address)
        self._arena = Arena(meeting.memory, self.rank, self.world_size)
        os.close(meeting.memory)
        self._waiting = WaitingRoom(self._arena, meeting)
        self._engine = Engine(self._arena, self._waiting, address.timeout)
        self._groups: dict[tuple[int, ...], CheckedGroup] = {}
        self._closed = False
        self._start(address, meeting.port)
        self.world = self.group(range(self.world_size), "world")

    def group(self, ranks: Sequence[int], name: str = "") -> Group:
        ranks = tuple(ranks)
        if sorted(set(ranks)) != list(ranks) or not all(0 <= rank < self.world_size for rank in ranks):
            raise ValueError(f"group {name} {list(ranks)}: needs ascending ranks below {self.world_size}")
        if self.rank not in ranks:
            raise ValueError(f"group {name} {list(ranks)}: rank {self.rank} is not a member, so it has no use of it")
        if ranks not in self._groups:
            self._groups[ranks] = self._make_group(ranks, name)
        return self._groups[ranks]

    def _start(self, address: Address, port: int) -> None:
        """Open what the transport needs, when all ranks are known to be there."""

    @abstractmethod
    def _make_group(self, ranks: tuple[int, ...], name: str) -> CheckedGroup: ...

    def fail(self, error: BaseException) -> None:
        if not self._closed:
            self._waiting.fail(error)

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._waiting.failure is None:
                self._leave_together()
        finally:
            self._closed = True
            self._groups.clear()
            self._waiting.close()
            self._arena.close()

    def _leave_together(self) -> None:
        """Raises CollectiveMismatch, on all ranks, if a message was never received or work never waited for."""
        self.world.barrier()
        left = [line for group in self._groups.values() for line in group.unreceived()]
        left += [f"rank {self.rank} never waited for {label}" for label in self._engine.unfinished()]
        if left:
            self._waiting.fail(CollectiveMismatch("at the end of the job: " + "; ".join(left), [self.rank]))
        self.world.barrier()


class SharedMemoryBackend(HostBackend):
    """Data passes through memory that all ranks map."""

    def _make_group(self, ranks: tuple[int, ...], name: str) -> CheckedGroup:
        return SharedMemoryGroup(self._engine, self.trace, ranks, name)
