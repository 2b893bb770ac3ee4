"""Collectives over MindSpore's own communication, on the ranks of one CPU host (mccl). For Ascend see `hccl.py`.

mccl has one stream for each pair of ranks and lies when ranks disagree what comes next in it. So every collective first
meets in the ledger, and both ends of a pair keep the same order: a rank sends at once, in the order of its
program; a record in the arena says what was sent and after how many collectives; a receiver takes messages from the
stream exactly there, and keeps those that nobody asked for yet. Asynchronous collectives complete when they are issued.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor

from pynative.collectives import mccl
from pynative.collectives.address import Address
from pynative.collectives.arena import Arena, ChannelLayout, key_of
from pynative.collectives.arrays import KINDS, Kind, to_numpy, to_tensor, writable
from pynative.collectives.checked import CheckedGroup, Waits
from pynative.collectives.cpu import CpuBackend
from pynative.collectives.engine import Completed, Engine, Lane, Steps
from pynative.collectives.errors import CollectiveError
from pynative.collectives.layout import join_axis, row_parts, split_axis
from pynative.collectives.ledger import Call, mismatch
from pynative.collectives.mailbox import Inbox, Outbox
from pynative.collectives.trace import Trace
from pynative.collectives.watch import Watch

Ranks = tuple[int, ...]
RECORDS = ChannelLayout(slots=2048, slot_bytes=0)
"""Messages under way from one rank to another: only their records pass through the arena."""


@dataclass
class Stream:
    """This rank's end of the streams to and from one peer."""

    out: Outbox
    records: Inbox
    collectives: int
    sent: int = 0
    received: int = 0
    unexpected: dict[Ranks, deque[tuple[Call, np.ndarray]]] = field(default_factory=lambda: defaultdict(deque))


class Streams:
    """The streams of this rank by global rank of the peer; `collectives` of each is a word that counts them."""

    def __init__(self, engine: Engine):
        self.arena: Arena = engine.arena
        self.watch = Watch(self.arena.rank, engine.waiting.names, engine.waiting.processes)
        self._channels = engine.channels
        self._by_peer: dict[int, Stream] = {}

    def of(self, peer: int) -> Stream:
        """The stream to and from a peer."""
        if peer not in self._by_peer:
            me = self.arena.rank
            out = self._channels.outbox(("records", me, peer), [peer], RECORDS)
            records = self._channels.inbox(("records", peer, me), peer, [me], RECORDS)
            count = self.arena.allocate(key_of("collectives", me, peer), 8) // 8
            self._by_peer[peer] = Stream(out, records, count)
        return self._by_peer[peer]

    def send(self, peer: int, call: Call, ranks: tuple[int, ...], x: np.ndarray, kind: Kind) -> None:
        """Record a message and put it on the stream."""
        stream = self.of(peer)
        if any(self.arena.words[word] < value for _, word, value in stream.out.room()):
            raise CollectiveError(f"{RECORDS.slots} messages to rank {peer} wait to be received")
        call.order = (self.arena.words[stream.collectives], *ranks)
        stream.out.post(call.packed())
        stream.sent += 1
        with self.watch.inside(call):
            mccl.send(x, kind, peer)

    def take(self, peer: int) -> Waits:
        """Wait for the next message's record and for its place in the stream; take it, and keep it for its group."""
        stream = self.of(peer)
        while not stream.records.arrived():
            yield [stream.records.arrival()]
        call = Call.unpacked(self.arena.memory, stream.records.header())
        after, *ranks = call.order
        if self.arena.words[stream.collectives] < after:
            yield [(peer, stream.collectives, after)]
        kind, shape = described(call.signature)
        stream.records.give_back()
        stream.received += 1
        with self.watch.inside(call):
            array = mccl.recv(int(np.prod(shape, dtype=np.int64)), kind, peer)
        stream.unexpected[tuple(ranks)].append((call, array))

    def passed_collective(self, peer: int) -> None:
        """One more collective went over the stream."""
        self.arena.words[self.of(peer).collectives] += 1


def described(signature: str) -> tuple[Kind, list[int]]:
    """Kind and shape of a message from its signature, such as `message float32[4, 2]`."""
    name, _, shape = signature.removeprefix("message ").partition("[")
    return next(kind for kind in KINDS.values() if kind.name == name), json.loads("[" + shape)


class NativeGroup(CheckedGroup):
    """A group whose data goes through mccl, after the ledger's check."""

    layout = ChannelLayout(slots=4, slot_bytes=0)

    def __init__(self, engine: Engine, trace: Trace, ranks: Sequence[int], name: str, streams: Streams):
        super().__init__(engine, trace, ranks, name)
        self._streams = streams

    def _run(self, operation: str, call: Call, steps: Steps, async_op: bool, size: int, is_source=False, lane=None):
        """Collectives run where they are issued: their place in the streams must not depend on anybody's timing."""
        in_place = lane is None
        result = super()._run(operation, call, steps, async_op and not in_place, size, is_source, lane)
        return Completed(result) if async_op and in_place else result

    def _together(self, call: Call, act: Callable[[str], Any]) -> Steps:
        """Meet in the ledger, take what was sent before, and only then call MindSpore."""
        call.order = tuple(0 if i == self.rank else self._streams.of(rank).sent for i, rank in enumerate(self.ranks))
        yield from self._room(self._out)
        self._out.post(call.packed())
        yield from self._agree(call)
        records = {i: Call.unpacked(self.arena.memory, inbox.header()) for i, inbox in self._in.items()}
        self._give_back()
        for i, theirs in records.items():
            self._check_rows(call, theirs, i)
            while self._streams.of(self.ranks[i]).received < theirs.order[self.rank]:
                yield from self._streams.take(self.ranks[i])
        with self._streams.watch.inside(call):
            result = act(mccl.group_name(self.ranks, self.arena.world_size))
        for i in self.peers:
            self._streams.passed_collective(self.ranks[i])
        return result

    def _check_rows(self, call: Call, theirs: Call, peer: int) -> None:
        sent, expected = call.rows
        if sent and (theirs.rows[0][self.rank], theirs.rows[1][self.rank]) != (expected[peer], sent[peer]):
            raise mismatch(call, theirs, self.ranks[self.rank], self.ranks[peer], self.name, " about rows")

    def _all_reduce(self, call: Call, x: Tensor, kind: Kind, op: str, out: Tensor | None) -> Steps:
        source = to_numpy(x, kind).reshape(-1)
        target = np.empty(x.shape, kind.storage) if out is None else writable(out, kind)

        def steps() -> Steps:
            result = yield from self._together(call, lambda group: mccl.all_reduce(source, kind, op, group))
            target[...] = result.reshape(x.shape)
            return to_tensor(target, kind) if out is None else out

        return steps()

    def _all_gather(self, call: Call, x: Tensor, kind: Kind, axis: int, out: Tensor | None) -> Steps:
        source, target = to_numpy(x, kind).reshape(-1), None if out is None else writable(out, kind)

        def steps() -> Steps:
            rows = yield from self._together(call, lambda group: mccl.all_gather(source, kind, self.size, group))
            return _delivered(join_axis(rows, x.shape, axis), kind, out, target)

        return steps()

    def _reduce_scatter(self, call: Call, x: Tensor, kind: Kind, axis: int, op: str, out: Tensor | None) -> Steps:
        parts = np.split(split_axis(to_numpy(x, kind), axis, self.size), self.size)
        shape = tuple(n // self.size if i == axis else n for i, n in enumerate(x.shape))
        target = None if out is None else writable(out, kind)

        def steps() -> Steps:
            exchange = lambda _: mccl.reduce_scatter(parts, kind, op, self.ranks, self.rank)  # noqa: E731
            mine = yield from self._together(call, exchange)
            return _delivered(mine.reshape(shape), kind, out, target)

        return steps()

    def _broadcast(self, call: Call, x: Tensor, kind: Kind, source: int) -> Steps:
        flat = to_numpy(x, kind).reshape(-1)
        root = self.ranks[source]
        result = yield from self._together(call, lambda group: mccl.broadcast(flat, kind, root, group))
        return x if source == self.rank else to_tensor(result.reshape(x.shape), kind)

    def _all_to_all(self, call: Call, x: Tensor, kind: Kind) -> Steps:
        source = to_numpy(x, kind).reshape(-1)
        row = int(np.prod(x.shape[1:], dtype=np.int64))
        parts = [source[start:stop] for start, stop in row_parts(call.rows[0], row)]
        counts = [count * row for count in call.rows[1]]
        received = yield from self._together(call, lambda _: mccl.exchange(parts, counts, kind, self.ranks, self.rank))
        return to_tensor(np.concatenate(received).reshape(sum(call.rows[1]), *x.shape[1:]), kind)

    def _barrier(self, call: Call) -> Steps:
        yield from self._together(call, lambda group: mccl.all_reduce(np.zeros(1, np.int32), INT32, "sum", group))

    def _send(self, call: Call, x: Tensor, kind: Kind, to: int) -> Steps:
        self._streams.send(self.ranks[to], call, self.ranks, to_numpy(x, kind).reshape(-1), kind)
        yield from ()

    def _recv(self, call: Call, shape: tuple[int, ...], kind: Kind, source: int) -> Steps:
        peer = self.ranks[source]
        unexpected = self._streams.of(peer).unexpected[self.ranks]
        while not unexpected:
            yield from self._streams.take(peer)
        theirs, array = unexpected.popleft()
        if (theirs.number, theirs.signature) != (call.number, call.signature):
            raise mismatch(call, theirs, self.ranks[self.rank], peer, self.name)
        return to_tensor(array.reshape(shape), kind)

    def _send_lane(self, to: int) -> Lane:
        self._streams.of(self.ranks[to])
        return super()._send_lane(to)

    def unreceived(self) -> list[str]:
        """Messages to this rank that it took from the stream and nobody received."""
        return [
            f"rank {self.ranks[self.rank]} of group {self.name} never received rank {self.ranks[i]}'s {call}"
            for i in self.peers
            for call, _ in self._streams.of(self.ranks[i]).unexpected[self.ranks]
        ]


def _delivered(result: np.ndarray, kind: Kind, out: Tensor | None, memory: np.ndarray | None) -> Tensor:
    """A tensor of the result, or `out`, whose memory is given, with it."""
    if out is None or memory is None:
        return to_tensor(result, kind)
    memory[...] = result
    return out


class NativeBackend(CpuBackend):
    """The ranks of one host over mccl. There is one in the life of a process."""

    def _start(self, address: Address, store: tuple[str, int]) -> None:
        mccl.initialise(self.rank, self.world_size, store, address.timeout)
        self._streams = Streams(self._engine)

    def _make_group(self, ranks: tuple[int, ...], name: str) -> CheckedGroup:
        return NativeGroup(self._engine, self.trace, ranks, name, self._streams)

    def _leave_together(self) -> None:
        super()._leave_together()
        mccl.finalise()


INT32 = next(kind for kind in KINDS.values() if kind.name == "int32")
