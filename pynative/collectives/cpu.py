"""A job whose ranks are on CPUs: the arena, the network and the engine that its groups share."""

import os
from collections.abc import Mapping, Sequence

from parallel_core.whereabouts import Standing
from pynative.collectives.engine import Engine
from pynative.collectives.errors import CollectiveMismatch
from pynative.collectives.interface import Backend, Group
from pynative.collectives.ledger import Label
from pynative.collectives.meeting.address import Address
from pynative.collectives.meeting.hosts import Membership, membership
from pynative.collectives.meeting.rendezvous import Place, Rendezvous, meet
from pynative.collectives.roll_call import RollCall
from pynative.collectives.trace import Trace
from pynative.collectives.wire.arena import Arena
from pynative.collectives.wire.board import ArenaBoard
from pynative.collectives.wire.mailbox import Channels
from pynative.collectives.wire.network import Network
from pynative.collectives.wire.shared_memory import SharedMemoryGroup
from pynative.collectives.wire.waiting import Waiter


class SharedMemoryBackend(Backend):
    """The backend of ranks on CPUs. It meets the other ranks when constructed, and raises PeerLate or PeerLost if they
    do not all come, ValueError for an address that cannot be right (on ranks above 0 OSError for a name too long for a
    Unix socket), for ranks or jobs that clash, and for too many ranks on one host. Data passes through memory that all
    ranks of a host map, and over TCP between hosts."""

    def __init__(self, address: Address):
        self.rank = address.rank
        self.world_size = address.world_size
        self.trace = Trace()
        found, connections = membership(address) if address.master else (None, {})
        self.ranks_of_host = found.ranks_of_host(self.rank) if found else tuple(range(self.world_size))
        name = _name_on_host(address, found)
        local = meet(Place(self.rank, self.ranks_of_host, self.world_size, name, address.timeout))
        self._arena = Arena(local.memory, self.rank, self.world_size)
        os.close(local.memory)
        self._network = Network(self._arena, connections, address.timeout)
        self._waiting = Waiter(self._arena, local.doorbells, _names(local, found), local.pids, self._network)
        channels = Channels(self._arena, self._waiting.ring, self._network)
        self._engine = Engine(self._arena, self._waiting, channels, address.timeout)
        self._roll_call = RollCall(ArenaBoard(self._arena, self._network))
        self._waiting.before_late = self._roll_call.ask_and_wait
        self._groups: dict[tuple[int, ...], SharedMemoryGroup] = {}
        self._closed = False
        self.world = self.group(range(self.world_size), "world")

    @property
    def local_size(self) -> int:
        return len(self.ranks_of_host)

    def group(self, ranks: Sequence[int], name: str = "") -> Group:
        ranks = tuple(ranks)
        if sorted(set(ranks)) != list(ranks) or not all(0 <= rank < self.world_size for rank in ranks):
            raise ValueError(f"group {name} {list(ranks)}: needs ascending ranks below {self.world_size}")
        if self.rank not in ranks:
            raise ValueError(f"group {name} {list(ranks)}: rank {self.rank} is not a member, so it has no use of it")
        if ranks not in self._groups:
            self._groups[ranks] = SharedMemoryGroup(self._engine, self.trace, ranks, name)
        return self._groups[ranks]

    def prepare(self, groups: Mapping[str, Sequence[int]]) -> None:
        """Do nothing: each rank makes its groups when it needs them."""

    def progress(self) -> None:
        self._engine.look_in()

    def standing(self) -> tuple[bool, tuple[Standing, ...]]:
        waits, outstanding = self._engine.standing()
        labels = ((label, missing) for label, missing in outstanding if isinstance(label, Label))
        return waits, tuple(label.standing(self.rank, missing) for label, missing in labels)

    def seconds_waited(self) -> float:
        return self._engine.idle

    @property
    def roll_call(self) -> RollCall:
        return self._roll_call

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
            self._roll_call.close()
            self._groups.clear()
            self._network.close(is_orderly=self._waiting.failure is None)
            self._waiting.close()
            self._arena.close()

    def _leave_together(self) -> None:
        """Wait until all ranks leave. Raises CollectiveMismatch, on all ranks, if a message was never received or an
        operation is unfinished."""
        self.world.barrier()
        left = [line for group in self._groups.values() for line in group.unreceived()]
        left += [f"rank {self.rank} never waited for {label}" for label in self._engine.unfinished()]
        if left:
            self._waiting.fail(CollectiveMismatch("at the end of the job: " + "; ".join(left), [self.rank]))
        self.world.barrier()


def _name_on_host(address: Address, found: Membership | None) -> str:
    """The name under which the ranks of this host meet: the job's, or with several hosts the job's token and the host's
    first rank."""
    return address.name if found is None else f"{found.token}-{found.ranks_of_host(address.rank)[0]}"


def _names(local: Rendezvous, found: Membership | None) -> dict[int, str]:
    """Each rank's name in messages, by rank: with its process id and, in a job of several hosts, its address."""
    if found is None:
        return {rank: f"rank {rank} (pid {pid})" for rank, pid in local.pids.items()}
    return {member.rank: f"rank {member.rank} (pid {member.pid} on {member.ip})" for member in found.members}
