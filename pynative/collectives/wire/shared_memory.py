"""Collectives between the ranks of one host, through memory that they all map; `network.py` extends it to other hosts.

Every rank posts what others need and reads what they posted. A small all-reduce: everybody posts all and reduces all,
in the same order. A large one: everybody reduces its own part of a block and posts the result, block after block, so
that memory in use is bounded.

Steps of a collective: wait for a free slot of this rank's channel, write, post; wait for the peers' posts, compare
their records of the call with this rank's, read, give the slots back.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from parallel_core.buffers.layout import Span
from parallel_core.numerics.dtypes import Array
from pynative.collectives.arrays import Kind, reduce_into, to_numpy, to_tensor, writable
from pynative.collectives.checked import CheckedGroup, Waits
from pynative.collectives.engine import Engine, Steps
from pynative.collectives.layout import join_axis, row_parts, spans, split_axis, window
from pynative.collectives.ledger import Call, check, mismatch
from pynative.collectives.trace import Trace
from pynative.collectives.wire.mailbox import COLLECTIVE, POINT_TO_POINT, Inbox, Outbox

SMALL = 64 << 10
"""Bytes up to which an all_reduce is one post of the whole tensor."""
AHEAD = COLLECTIVE.slots // 2
"""The number of blocks of a reduce_scatter or an all_gather that a rank posts before it waits for the peers' first
block: so many it can post at once between two computations. It is half of a channel's slots; the other half holds
blocks that are being read."""


class SharedMemoryGroup(CheckedGroup):
    """A group of ranks whose tensors pass through channels, rings of slots in memory that the ranks of a host share;
    between hosts through copies of them (`network.py`)."""

    def __init__(self, engine: Engine, trace: Trace, ranks: Sequence[int], name: str):
        super().__init__(engine, trace, ranks, name)
        self._room_for_each = COLLECTIVE.slot_bytes // max(1, self.size - 1) // 64 * 64
        self._messages_out: dict[int, Outbox] = {}
        self._messages_in: dict[int, Inbox] = {}
        self._sent: dict[int, deque[tuple[int, Call]]] = {}

    def _place(self, peer: int) -> int:
        """Byte in this rank's post at which the part for group index `peer` starts."""
        return self._room_for_each * (peer - (peer > self.rank))

    def _mine_from(self, peer: int) -> int:
        """Byte in the post of group index `peer` at which the part for this rank starts."""
        return self._room_for_each * (self.rank - (self.rank > peer))

    # Collectives.

    def _all_reduce(self, call: Call, x: Tensor, kind: Kind, op: str, out: Tensor | None) -> Steps:
        target = np.empty(x.shape, kind.storage) if out is None else writable(out, kind)
        source = target if out is x else to_numpy(x, kind)
        reduce = self._reduce_whole if source.nbytes <= SMALL else self._reduce_blocks

        def steps() -> Steps:
            yield from reduce(call, source.reshape(-1), target.reshape(-1), op, kind)
            return to_tensor(target, kind) if out is None else out

        return steps()

    def _reduce_whole(self, call: Call, source: Array, target: Array, op: str, kind: Kind) -> Waits:
        yield from self._room(self._out)
        mine = self._out.payload(source.dtype, source.size)
        mine[...] = source
        self._out.post(call.packed())
        yield from self._agree(call)
        parts = [mine if i == self.rank else self._in[i].view(source.dtype, source.size) for i in range(self.size)]
        reduce_into(target, parts, op, kind)
        self._give_back()

    def _reduce_blocks(self, call: Call, source: Array, target: Array, op: str, kind: Kind) -> Waits:
        """Fill `target` with the all-reduced `source`, both flat, block after block, each cut in one part a rank. Parts
        of block k + 1 are posted before block k is read, to keep all busy. In place is safe: a block is read into the
        outbox before any of it is written."""
        blocks = spans(source.size, self._room_for_each // source.itemsize * self.size)
        for k in range(len(blocks) + 2):
            if k < len(blocks):
                yield from self._post_parts(source, self._parts(blocks[k]), call.packed() if k == 0 else b"")
            if 1 <= k <= len(blocks):
                yield from self._agree(call) if k == 1 else self._arrivals_of_all()
                part = self._parts(blocks[k - 1])[self.rank]
                yield from self._post_sum(source[part.start : part.stop], target[part.start : part.stop], op, kind)
            if k >= 2:
                yield from self._read_sums(target, self._parts(blocks[k - 2]))

    def _parts(self, block: Span) -> list[Span]:
        """The parts of a block, one for each rank of the group, as spans of elements of the whole flat array, as the
        block is; the last ones may be short or empty."""
        length = -(-(block.stop - block.start) // self.size)
        starts = [min(block.start + i * length, block.stop) for i in range(self.size + 1)]
        return [Span(starts[i], starts[i + 1]) for i in range(self.size)]

    def _post_parts(self, source: Array, parts: Sequence[Span], header: bytes) -> Waits:
        yield from self._room(self._out)
        for i in self.peers:
            part = source[parts[i].start : parts[i].stop]
            self._out.payload(part.dtype, part.size, self._place(i), self.ranks[i])[...] = part
        self._out.post(header)

    def _sum_parts(self, own: Array, target: Array, op: str, kind: Kind) -> None:
        """Write into `target` the reduction, in group order, of this rank's `own` part and what the peers posted for
        it."""
        parts = [
            own if i == self.rank else self._in[i].view(own.dtype, own.size, self._mine_from(i))
            for i in range(self.size)
        ]
        reduce_into(target, parts, op, kind)
        self._give_back()

    def _post_sum(self, own: Array, target: Array, op: str, kind: Kind) -> Waits:
        yield from self._room(self._out)
        total = self._out.payload(own.dtype, own.size)
        self._sum_parts(own, total, op, kind)
        self._out.post()
        np.copyto(target, total)

    def _read_sums(self, target: Array, parts: Sequence[Span]) -> Waits:
        yield from self._arrivals_of_all()
        for i, inbox in self._in.items():
            start, stop = parts[i]
            np.copyto(target[start:stop], inbox.view(target.dtype, stop - start))
        self._give_back()

    def _reduce_scatter(self, call: Call, x: Tensor, kind: Kind, axis: int, op: str, out: Tensor | None) -> Steps:
        """A reduce-scatter, which may be in place: what others need of a block is posted before any of it is written,
        and this rank's own addend is read before the sum is written where it was. out: memory of the result, None:
        new."""
        source = split_axis(to_numpy(x, kind), axis, self.size)
        shape = tuple(n // self.size if i == axis else n for i, n in enumerate(x.shape))
        target = np.empty(shape, kind.storage) if out is None else writable(out, kind)

        def steps() -> Steps:
            yield from self._reduce_parts(call, source, target.reshape(-1), op, kind)
            return to_tensor(target, kind) if out is None else out

        return steps()

    def _reduce_parts(self, call: Call, source: Array, target: Array, op: str, kind: Kind) -> Waits:
        count = target.size
        todo = spans(count, self._room_for_each // source.itemsize)
        for k in range(len(todo) + AHEAD):
            if k < len(todo):
                parts = [Span(i * count + todo[k].start, i * count + todo[k].stop) for i in range(self.size)]
                yield from self._post_parts(source, parts, call.packed() if k == 0 else b"")
            if k >= AHEAD:
                yield from self._agree(call) if k == AHEAD else self._arrivals_of_all()
                start, stop = todo[k - AHEAD]
                own = source[self.rank * count + start : self.rank * count + stop].copy()
                self._sum_parts(own, target[start:stop], op, kind)

    def _all_gather(self, call: Call, x: Tensor, kind: Kind, axis: int, out: Tensor | None) -> Steps:
        source = to_numpy(x, kind).reshape(-1)
        target = np.empty((self.size, source.size), source.dtype) if out is None else writable(out, kind)

        def steps() -> Steps:
            rows = target.reshape(self.size, -1)
            yield from self._gather_rows(call, source, rows)
            return to_tensor(join_axis(rows, x.shape, axis), kind) if out is None else out

        return steps()

    def _gather_rows(self, call: Call, source: Array, target: Array) -> Waits:
        target[self.rank] = source
        todo = spans(source.size, COLLECTIVE.slot_bytes // source.itemsize)
        for k in range(len(todo) + AHEAD):
            if k < len(todo):
                yield from self._room(self._out)
                part = source[todo[k].start : todo[k].stop]
                self._out.payload(part.dtype, part.size)[...] = part
                self._out.post(call.packed() if k == 0 else b"")
            if k >= AHEAD:
                yield from self._agree(call) if k == AHEAD else self._arrivals_of_all()
                start, stop = todo[k - AHEAD]
                for i, inbox in self._in.items():
                    target[i, start:stop] = inbox.view(source.dtype, stop - start)
                self._give_back()

    def _broadcast(self, call: Call, x: Tensor, kind: Kind, source: int) -> Steps:
        is_source = source == self.rank
        target = to_numpy(x, kind) if is_source else np.empty(x.shape, kind.storage)
        flat = target.reshape(-1)
        todo = spans(flat.size, COLLECTIVE.slot_bytes // flat.itemsize)
        for k, (start, stop) in enumerate(todo):
            if is_source or k == 0:
                yield from self._room(self._out)
                if is_source:
                    self._out.payload(flat.dtype, stop - start)[...] = flat[start:stop]
                self._out.post(call.packed() if k == 0 else b"")
            if k == 0:
                yield from self._agree(call)
                for i in self.peers:
                    if i != source:
                        self._in[i].give_back()
            if not is_source:
                yield from self._arrivals([self._in[source]])
                flat[start:stop] = self._in[source].view(flat.dtype, stop - start)
                self._in[source].give_back()
        return x if is_source else to_tensor(target, kind)

    def _all_to_all(self, call: Call, x: Tensor, kind: Kind) -> Steps:
        source = to_numpy(x, kind).reshape(-1)
        row = int(np.prod(x.shape[1:], dtype=np.int64))
        largest = max(1, self._room_for_each // source.itemsize)
        target = np.empty((sum(call.rows[1]), *x.shape[1:]), kind.storage)
        out_parts, in_parts = row_parts(call.rows[0], row), row_parts(call.rows[1], row)
        flat = target.reshape(-1)
        flat[slice(*in_parts[self.rank])] = source[slice(*out_parts[self.rank])]
        rounds = {self.rank: self._rounds(call.rows[0], row, largest, self.rank)}
        k = 0
        while k == 0 or k < max(rounds.values()):
            if k < rounds[self.rank]:
                windows = [window(part, k, largest) for part in out_parts]
                yield from self._post_parts(source, windows, call.packed() if k == 0 else b"")
            if k == 0:
                yield from self._agree(call)
                for i in self.peers:
                    rounds[i] = self._rounds(self._agreed_rows(call, i), row, largest, i)
            active = [i for i in self.peers if k < rounds[i]]
            yield from self._arrivals([self._in[i] for i in active])
            for i in active:
                start, stop = window(in_parts[i], k, largest)
                flat[start:stop] = self._in[i].view(flat.dtype, stop - start, self._mine_from(i))
                self._in[i].give_back()
            k += 1
        return to_tensor(target, kind)

    def _rounds(self, rows: Sequence[int], row: int, largest: int, owner: int) -> int:
        """The number of posts, at least 1, that group index `owner` needs for the rows that it sends. rows: how many to
        each rank, of `row` entries each; largest: the most entries of one rank's part of a post."""
        return max(1, *(-(-count * row // largest) for i, count in enumerate(rows) if i != owner))

    def _agreed_rows(self, call: Call, peer: int) -> tuple[int, ...]:
        """The number of rows that group index `peer` sends to each rank of the group in an all_to_all. Raises
        CollectiveMismatch if its record of the call disagrees with what this rank sends to it and expects from it."""
        theirs = Call.unpacked(self.arena.memory, self._in[peer].header())
        sent, expected = call.rows
        if theirs.rows[0][self.rank] != expected[peer] or theirs.rows[1][self.rank] != sent[peer]:
            what = (
                f" about rows: rank {self.ranks[self.rank]} sends {sent[peer]} and expects {expected[peer]}, "
                f"rank {self.ranks[peer]} expects {theirs.rows[1][self.rank]} and sends {theirs.rows[0][self.rank]}"
            )
            raise mismatch(call, theirs, self.ranks[self.rank], self.ranks[peer], self.name, what)
        return theirs.rows[0]

    # Point to point: a channel for each pair and direction, used by this group alone.

    def _message_outbox(self, to: int) -> Outbox:
        if to not in self._messages_out:
            name = (self.ranks, "message", self.rank, to)
            self._messages_out[to] = self._channels.outbox(name, [self.ranks[to]], POINT_TO_POINT)
            self._sent[to] = deque()
        return self._messages_out[to]

    def _message_inbox(self, source: int) -> Inbox:
        if source not in self._messages_in:
            name = (self.ranks, "message", source, self.rank)
            readers = [self.ranks[self.rank]]
            self._messages_in[source] = self._channels.inbox(name, self.ranks[source], readers, POINT_TO_POINT)
        return self._messages_in[source]

    def _send(self, call: Call, x: Tensor, kind: Kind, to: int) -> Steps:
        outbox = self._message_outbox(to)
        source = to_numpy(x, kind).reshape(-1)
        for k, (start, stop) in enumerate(spans(source.size, POINT_TO_POINT.slot_bytes // source.itemsize)):
            yield from self._room(outbox)
            outbox.payload(source.dtype, stop - start)[...] = source[start:stop]
            outbox.post(call.packed() if k == 0 else b"")
        self._sent[to].append((outbox.posted, call))
        self._forget_received(to)

    def _forget_received(self, to: int) -> None:
        outbox, sent = self._messages_out[to], self._sent[to]
        while sent and sent[0][0] <= outbox.posted - outbox.unread():
            sent.popleft()

    def _recv(self, call: Call, shape: tuple[int, ...], kind: Kind, source: int) -> Steps:
        inbox = self._message_inbox(source)
        target = np.empty(shape, kind.storage)
        flat = target.reshape(-1)
        for k, (start, stop) in enumerate(spans(flat.size, POINT_TO_POINT.slot_bytes // flat.itemsize)):
            yield from self._arrivals([inbox])
            if k == 0:
                check(self.arena.memory, inbox.header(), call, self.ranks[self.rank], inbox.writer, self.name)
            flat[start:stop] = inbox.view(flat.dtype, stop - start)
            inbox.give_back()
        return to_tensor(target, kind)

    def unreceived(self) -> list[str]:
        """Messages of this rank's completed sends in the group that their receivers have not taken, a line of text for
        each."""
        for to in self._sent:
            self._forget_received(to)
        return [
            f"rank {self.ranks[to]} of group {self.name} never received rank {self.ranks[self.rank]}'s {call}"
            for to, sent in self._sent.items()
            for _, call in sent
        ]
