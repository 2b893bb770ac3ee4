"""A channel of the arena: one rank posts, one or several ranks read every post in order.

    posted word | one consumed word per reader | slot 0 | slot 1 | ...              slot = header + payload

A post is announced by `posted += 1`, given back by every reader's `consumed += 1`; post k lives in slot k modulo the
number of slots, so a writer is at most that many posts ahead of its slowest reader. Nothing here waits for a target:
`room` and `arrival` name them, as `(rank, word, value)`: rank owes us that the word reaches the value.
Readers on other hosts have copies of the channel, which `network.py` keeps up to date.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.collectives.wire.arena import CACHE_LINE_WORDS, Arena, ChannelLayout, key_of, order_memory
from pynative.collectives.wire.network import NOTHING, Network

Target = tuple[int, int, int]
COLLECTIVE = ChannelLayout(slots=16, slot_bytes=512 << 10)
"""The layout of a group's channels, but for the room for headers, which grows with the group. A post is a block that
fits a processor's cache. A rank that computes looks in now and then (`Backend.progress`), and gets so many posts
further each time."""
POINT_TO_POINT = ChannelLayout(slots=32, slot_bytes=1 << 20)


class Outbox:
    """The writing end of a channel of this rank. `readers` are global ranks."""

    def __init__(self, channels: "Channels", name: object, readers: Sequence[int], layout: ChannelLayout):
        arena, network = channels.arena, channels.network
        self.arena, self._ring, self._network = arena, channels.ring, network
        self.readers = readers
        self.layout = layout
        self.posted = 0
        self._key = key_of(name)
        self._base = arena.allocate(self._key, layout.size(len(readers)))
        self._local = [rank for rank in readers if rank not in network.peers]
        self._remote = [rank for rank in readers if rank in network.peers]
        self._written: dict[int | None, tuple[int, Array]] = {}
        for i, rank in enumerate(readers):
            network.await_consumed(rank, self._key, self._consumed(i))

    def room(self) -> list[Target]:
        """The targets that must be reached before the next post: each reader has given back the earlier post whose slot
        the next one takes; none if that slot has had no post."""
        needed = self.posted - self.layout.slots + 1
        return [(rank, self._consumed(i), needed) for i, rank in enumerate(self.readers)] if needed > 0 else []

    def payload(self, dtype: np.dtype[Any], count: int, start: int = 0, reader: int | None = None) -> Array:
        """A view of `count` entries in the next post's payload, from its byte `start` on, to be written before `post`.

        reader: the global rank that reads these entries; None: all readers do. A post has at most one such part for
        all, or one for each reader.
        """
        part = view(self.arena, self._header() + self.layout.header_bytes + start, dtype, count)
        if self._remote:
            self._written[reader] = start, part
        return part

    def post(self, header: bytes = b"") -> None:
        """Announce the post whose payload was written, and send it to readers on other hosts; `header` is at most the
        layout's `header_bytes`, else AssertionError."""
        start, room = self._header(), self.layout.header_bytes
        assert len(header) <= room, f"a ledger record of {len(header)} bytes does not fit {room}"
        if header:
            self.arena.memory[start : start + len(header)] = header
        order_memory()
        self.posted += 1
        self.arena.words[self._base // 8] = self.posted
        for rank in self._local:
            self._ring(rank)
        if self._remote:
            self._send(header)

    def _send(self, header: bytes) -> None:
        """Send the post to each reader on another host: the part for all readers, or the reader's own."""
        for_all = self._written.get(None, (0, NOTHING))
        for rank in self._remote:
            start, part = self._written.get(rank, for_all)
            self._network.post(rank, self._key, self.layout, self.posted - 1, header, start, part)
        self._written.clear()

    def _header(self) -> int:
        """Byte offset in the arena of the next post's header."""
        return self.layout.header(self._base, len(self.readers), self.posted)

    def unread(self) -> int:
        """The number of posts that at least one reader has not given back."""
        return self.posted - min(self.arena.words[self._consumed(i)] for i in range(len(self.readers)))

    def _consumed(self, reader: int) -> int:
        return self._base // 8 + CACHE_LINE_WORDS * (1 + reader)


class Inbox:
    """A reading end of the channel that global rank `writer` posts to `readers`, of which this rank is one."""

    def __init__(self, channels: "Channels", name: object, writer: int, readers: Sequence[int], layout: ChannelLayout):
        self.arena, self._ring = channels.arena, channels.ring
        self.writer = writer
        self.layout = layout
        self.consumed = 0
        self._key = key_of(name)
        self._readers = len(readers)
        self._mine = 1 + list(readers).index(self.arena.rank)
        self._base: int | None = None

    def arrival(self) -> Target:
        """The target that must be reached before the next post can be read. As long as the writer has not made the
        channel, it is that the writer's list of channels grows; call this again after that."""
        if self._base is None:
            growth = self.arena.directory_growth(self.writer)
            self._base = self.arena.find(self.writer, self._key)
            if self._base is None:
                return (self.writer, *growth)
        return (self.writer, self._base // 8, self.consumed + 1)

    def arrived(self) -> bool:
        """Whether the next post has arrived."""
        _, word, value = self.arrival()
        return self._base is not None and self.arena.words[word] >= value

    def header(self) -> int:
        """Byte offset in the arena of the next post's header; the post must have arrived."""
        assert self._base is not None
        order_memory()
        return self.layout.header(self._base, self._readers, self.consumed)

    def view(self, dtype: np.dtype[Any], count: int, start: int = 0) -> Array:
        """A view of `count` entries in the arrived post's payload, from its byte `start` on; valid until
        `give_back`."""
        return view(self.arena, self.header() + self.layout.header_bytes + start, dtype, count)

    def give_back(self) -> None:
        """Give the arrived post's slot back to the writer, and go on to the next post."""
        assert self._base is not None
        order_memory()
        self.consumed += 1
        self.arena.words[self._base // 8 + CACHE_LINE_WORDS * self._mine] = self.consumed
        self._ring(self.writer)


class RemoteInbox(Inbox):
    """A reading end whose writer is on another host: it reads this rank's own copy of the channel."""

    def __init__(self, channels: "Channels", name: object, writer: int, layout: ChannelLayout):
        super().__init__(channels, name, writer, [channels.arena.rank], layout)
        self._network = channels.network
        self._base = self._network.copy(writer, self._key, layout)

    def give_back(self) -> None:
        super().give_back()
        self._network.give_back(self.writer, self._key, self.consumed)


@dataclass(frozen=True)
class Channels:
    """The maker of this rank's ends of channels. `ring` wakes a rank of this host."""

    arena: Arena
    ring: Callable[[int], None]
    network: Network

    def outbox(self, name: object, readers: Sequence[int], layout: ChannelLayout) -> Outbox:
        """Make the writing end of this rank's channel `name`, once for each name. Raises MemoryError if this rank's
        region of the arena is full."""
        return Outbox(self, name, readers, layout)

    def inbox(self, name: object, writer: int, readers: Sequence[int], layout: ChannelLayout) -> Inbox:
        """Make a reading end of the channel `name` of global rank `writer`. Raises, for a writer on another host, as
        `Network.copy`."""
        if writer in self.network.peers:
            return RemoteInbox(self, name, writer, layout)
        return Inbox(self, name, writer, readers, layout)


def view(arena: Arena, offset: int, dtype: np.dtype[Any], count: int) -> Array:
    """`count` entries of the arena from a byte offset on, as an array over its memory."""
    return np.ndarray(count, dtype, arena.memory, offset)
