"""A group of ranks on CPUs: the channels between them, and the comparison of every collective call with the other
ranks'."""

from collections.abc import Generator, Sequence

from pynative.collectives.engine import Engine, Lane, Steps
from pynative.collectives.interface import Group
from pynative.collectives.ledger import Call, check, record_bytes
from pynative.collectives.trace import Trace
from pynative.collectives.wire.arena import ChannelLayout
from pynative.collectives.wire.mailbox import COLLECTIVE, Inbox, Outbox, Target

Waits = Generator[Sequence[Target], None, None]


class CheckedGroup(Group):
    """A group in which, unless it has one rank, each member has a channel that it posts to and all others read; the
    first post of each operation carries the call's ledger record, which the readers compare with their own call."""

    def __init__(self, engine: Engine, trace: Trace, ranks: Sequence[int], name: str):
        super().__init__(engine, trace, engine.arena.rank, ranks, name)
        self.arena = engine.arena
        self._channels = engine.channels
        self.peers = [i for i in range(self.size) if i != self.rank]
        self._lanes: dict[tuple[str, int], Lane] = {}
        if self.size > 1:
            self._layout = ChannelLayout(COLLECTIVE.slots, COLLECTIVE.slot_bytes, record_bytes(self.size))
            readers = [self.ranks[i] for i in self.peers]
            self._out = self._channels.outbox((self.ranks, "collective"), readers, self._layout)
            self._in = {i: self._collective_inbox(i) for i in self.peers}

    def _collective_inbox(self, writer: int) -> Inbox:
        readers = [rank for i, rank in enumerate(self.ranks) if i != writer]
        return self._channels.inbox((self.ranks, "collective"), self.ranks[writer], readers, self._layout)

    def _room(self, outbox: Outbox) -> Waits:
        targets = outbox.room()
        if targets:
            yield targets

    def _arrivals(self, inboxes: Sequence[Inbox]) -> Waits:
        while targets := [inbox.arrival() for inbox in inboxes if not inbox.arrived()]:
            yield targets

    def _arrivals_of_all(self) -> Waits:
        return self._arrivals(list(self._in.values()))

    def _agree(self, call: Call) -> Waits:
        """Wait for the peers' first posts of an operation and compare them with this rank's call. Raises
        CollectiveMismatch if they differ."""
        yield from self._arrivals_of_all()
        for inbox in self._in.values():
            check(self.arena.memory, inbox.header(), call, self.ranks[self.rank], inbox.writer, self.name)

    def _give_back(self) -> None:
        for inbox in self._in.values():
            inbox.give_back()

    def _barrier(self, call: Call) -> Steps:
        yield from self._room(self._out)
        self._out.post(call.packed())
        yield from self._agree(call)
        self._give_back()

    def _send_lane(self, to: int) -> Lane:
        return self._lanes.setdefault(("to", to), Lane())

    def _recv_lane(self, source: int) -> Lane:
        return self._lanes.setdefault(("from", source), Lane())

    def unreceived(self) -> list[str]:
        """Messages of this rank's completed sends in the group that their receivers have not taken, a line of text for
        each; a subclass gives them (NotImplementedError here)."""
        raise NotImplementedError
