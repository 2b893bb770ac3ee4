"""A channel of the arena: one rank posts, one or several ranks read every post in order.

    posted word | one consumed word per reader | slot 0 | slot 1 | ...          slot = header page + payload

A post is announced by `posted += 1`, given back by every reader's `consumed += 1`; post k lives in slot k modulo the
number of slots, so a writer is at most that many posts ahead of its slowest reader. Nothing here waits: `room` and
`arrival` say what to wait for, as targets `(rank, word, value)`: rank owes us that the word reaches the value.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pynative.collectives.arena import PAGE, Arena, key_of, order_memory

Target = tuple[int, int, int]
CACHE_LINE_WORDS = 8


class Layout:
    """Sizes of a channel: `slots` posts of `slot_bytes` each in flight."""

    def __init__(self, slots: int, slot_bytes: int):
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.stride = PAGE + slot_bytes

    def header(self, base: int, readers: int, post: int) -> int:
        """Byte offset of the header of a post in the channel that starts at byte `base`."""
        control = -(-8 * CACHE_LINE_WORDS * (1 + readers) // PAGE) * PAGE
        return base + control + post % self.slots * self.stride

    def size(self, readers: int) -> int:
        """Bytes of a whole channel."""
        return self.header(0, readers, 0) + self.slots * self.stride


COLLECTIVE = Layout(slots=4, slot_bytes=512 << 10)
POINT_TO_POINT = Layout(slots=32, slot_bytes=1 << 20)


class Outbox:
    """This rank's end of a channel it writes. `readers` are global ranks."""

    def __init__(self, arena: Arena, name: object, readers: Sequence[int], layout: Layout, ring: Callable[[int], None]):
        self.arena = arena
        self.readers = readers
        self.layout = layout
        self.posted = 0
        self._ring = ring
        self._base = arena.allocate(key_of(name), layout.size(len(readers)))

    def room(self) -> list[Target]:
        """What must happen before the next post: every reader gave back the post whose slot it takes."""
        needed = self.posted - self.layout.slots + 1
        return [(rank, self._consumed(i), needed) for i, rank in enumerate(self.readers)] if needed > 0 else []

    def payload(self) -> int:
        """Byte offset where the payload of the next post is to be written."""
        return self.layout.header(self._base, len(self.readers), self.posted) + PAGE

    def post(self, header: bytes = b"") -> None:
        """Announce the post whose payload was written; `header` is at most a page."""
        start = self.payload() - PAGE
        assert len(header) <= PAGE, f"a ledger record of {len(header)} bytes does not fit a page"
        if header:
            self.arena.memory[start : start + len(header)] = header
        order_memory()
        self.posted += 1
        self.arena.words[self._base // 8] = self.posted
        for rank in self.readers:
            self._ring(rank)

    def unread(self) -> int:
        """Posts that some reader has not given back."""
        return self.posted - min(self.arena.words[self._consumed(i)] for i in range(len(self.readers)))

    def _consumed(self, reader: int) -> int:
        return self._base // 8 + CACHE_LINE_WORDS * (1 + reader)


class Inbox:
    """A reader's end: posts of global rank `writer` to `readers`, of which this rank is one."""

    def __init__(
        self,
        arena: Arena,
        name: object,
        writer: int,
        readers: Sequence[int],
        layout: Layout,
        ring: Callable[[int], None],
    ):
        self.arena = arena
        self.writer = writer
        self.layout = layout
        self.consumed = 0
        self._ring = ring
        self._key = key_of(name)
        self._readers = len(readers)
        self._mine = 1 + list(readers).index(arena.rank)
        self._base: int | None = None

    def arrival(self) -> Target:
        """What must happen before the next post can be read."""
        if self._base is None:
            growth = self.arena.directory_growth(self.writer)
            self._base = self.arena.find(self.writer, self._key)
            if self._base is None:
                return (self.writer, *growth)
        return (self.writer, self._base // 8, self.consumed + 1)

    def arrived(self) -> bool:
        """Whether the next post is there."""
        _, word, value = self.arrival()
        return self._base is not None and self.arena.words[word] >= value

    def header(self) -> int:
        """Byte offset of the header of the next post, which must have arrived."""
        assert self._base is not None
        order_memory()
        return self.layout.header(self._base, self._readers, self.consumed)

    def view(self, dtype: np.dtype, count: int, start: int = 0) -> np.ndarray:
        """`count` entries of the arrived post's payload, from byte `start` of it; valid until `give_back`."""
        return view(self.arena, self.header() + PAGE + start, dtype, count)

    def give_back(self) -> None:
        """The post was read: its slot may be written again."""
        assert self._base is not None
        order_memory()
        self.consumed += 1
        self.arena.words[self._base // 8 + CACHE_LINE_WORDS * self._mine] = self.consumed
        self._ring(self.writer)


def view(arena: Arena, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
    """`count` entries of the arena at a byte offset."""
    return np.ndarray(count, dtype, arena.memory, offset)
