"""The arena: one anonymous block of memory that all ranks of a host map, with a region for each rank of the job.

The memory is a `memfd`: it has no name in any file system, so the operating system frees it when the last process that
uses it ends, even by `kill -9`. It is large but sparse: a page costs memory once it is read or written.

Every rank owns one region and hands out blocks of it to itself, without asking anybody. A block for peers is published
under a 63-bit key in the region's directory, where they look it up. The numbers that operations wait for are 64-bit
words with one writer and only ever growing, so that waiting needs no lock.

  region of a rank:   board (one page) | failure text (one page) | answer (four pages) | directory | blocks ...
"""

import mmap
import os
import platform
import threading
from hashlib import blake2b

import numpy as np

PAGE = 4096
REGION = 4 << 30
ANSWER = 2 * PAGE
ANSWER_BYTES = 4 * PAGE
DIRECTORY = ANSWER + ANSWER_BYTES
DIRECTORY_ENTRIES = 8191
FIRST_FREE = DIRECTORY + 16 * (DIRECTORY_ENTRIES + 1)
CACHE_LINE_WORDS = 8

# Words of a rank's board, as indices into it.
SLEEPING = 0
FAILED = 8
BLOCKED = 16
IDLE_ROUNDS = 24
ANY_FAILED = 28  # on rank 0's board only: whether a rank has failed
ASKED = 29  # on rank 0's board only: the number of the last roll call that was asked for
ANSWERED = 30  # the number of the last roll call that this rank answered
SHOWN = 31  # on rank 0's board only: the number of the last roll call whose table was printed
TARGETS = 32
MAX_TARGETS = 64
LABEL = 2048  # byte offset of the text that says what the rank waits for
FAILURE = PAGE  # byte offset of the text that says why the rank failed

_fence_lock = threading.Lock()


def fence() -> None:
    """Order what this rank wrote before against what it reads or writes after (an atomic operation does that)."""
    _fence_lock.acquire()
    _fence_lock.release()


def order_memory() -> None:
    """Order data against the counter that announces it: a fence, but nothing on x86-64, which keeps stores, and loads,
    in order by itself."""
    if not _IN_ORDER:
        fence()


_IN_ORDER = platform.machine() in ("x86_64", "AMD64")


def key_of(*parts: object) -> int:
    """A 63-bit key of a block, the same on every rank that passes parts with the same `repr`."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


class ChannelLayout:
    """The sizes of a channel: `slots` posts of at most `slot_bytes` of payload each can be in flight. header_bytes: the
    room for a post's header, rounded up to whole pages."""

    def __init__(self, slots: int, slot_bytes: int, header_bytes: int = PAGE):
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.header_bytes = -(-header_bytes // PAGE) * PAGE
        self.stride = self.header_bytes + slot_bytes

    def header(self, base: int, readers: int, post: int) -> int:
        """Byte offset of the header of post number `post` (from 0) in a channel of `readers` readers that starts at
        byte `base`."""
        control = -(-8 * CACHE_LINE_WORDS * (1 + readers) // PAGE) * PAGE
        return base + control + post % self.slots * self.stride

    def size(self, readers: int) -> int:
        """Bytes of a whole channel of `readers` readers."""
        return self.header(0, readers, 0) + self.slots * self.stride


class Arena:
    """The memory that the ranks of a host share, with a region for each of the job's `world_size` ranks, as `rank` maps
    it. Offsets are bytes, words are 64-bit."""

    def __init__(self, descriptor: int, rank: int, world_size: int):
        self.rank = rank
        self.world_size = world_size
        self.memory = mmap.mmap(descriptor, world_size * REGION)
        self.words = memoryview(self.memory).cast("q")
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self._next_free = self.board(rank) * 8 + FIRST_FREE
        self._taking = threading.Lock()
        self._found: dict[tuple[int, int], int] = {}

    @staticmethod
    def create(world_size: int) -> int:
        """A file descriptor of fresh zeroed memory for `world_size` ranks."""
        descriptor = os.memfd_create("pynative-collectives")
        os.ftruncate(descriptor, world_size * REGION)
        return descriptor

    @staticmethod
    def board(rank: int) -> int:
        """Index, among the arena's words, of the first word of a rank's board, with which its region begins."""
        return rank * REGION // 8

    def take(self, size: int) -> int:
        """Take `size` bytes, in whole pages, of this rank's own region; their byte offset. Raises MemoryError if they
        do not fit, and at every later call."""
        with self._taking:
            offset = self._next_free
            self._next_free += -(-size // PAGE) * PAGE
        if self._next_free > (self.rank + 1) * REGION:
            raise MemoryError(f"rank {self.rank} uses too many groups: its {REGION >> 30} GB of shared memory are full")
        return offset

    def allocate(self, key: int, size: int) -> int:
        """Take `size` bytes of this rank's own region, as `take` does, and publish them under `key`; their byte offset.
        Raises MemoryError if they do not fit or the region's directory of blocks is full."""
        offset = self.take(size)
        directory = self.board(self.rank) + DIRECTORY // 8
        count = self.words[directory]
        if count == DIRECTORY_ENTRIES:
            raise MemoryError(f"rank {self.rank} uses too many groups: more than {DIRECTORY_ENTRIES} channels")
        self.words[directory + 2 * (count + 1)] = key
        self.words[directory + 2 * (count + 1) + 1] = offset
        order_memory()
        self.words[directory] = count + 1
        return offset

    def find(self, rank: int, key: int) -> int | None:
        """Byte offset of the block that `rank`, of this host, published under `key`; None if it has not yet."""
        if (rank, key) not in self._found:
            directory = self.board(rank) + DIRECTORY // 8
            for entry in range(1, self.words[directory] + 1):
                self._found[rank, self.words[directory + 2 * entry]] = self.words[directory + 2 * entry + 1]
        return self._found.get((rank, key))

    def directory_growth(self, rank: int) -> tuple[int, int]:
        """(index of a word of the arena, value): when `rank` publishes one more block, that word reaches the value. Ask
        before `find`."""
        directory = self.board(rank) + DIRECTORY // 8
        return directory, self.words[directory] + 1

    def write_text(self, rank: int, offset: int, text: str, limit: int) -> None:
        """Store `text` at a byte offset from the start of a rank's region, cut so that it takes at most `limit` bytes
        together with the 8 bytes of its length."""
        start = self.board(rank) * 8 + offset
        raw = text.encode()[: limit - 8]
        self.memory[start + 8 : start + 8 + len(raw)] = raw
        self.words[start // 8] = len(raw)

    def read_text(self, rank: int, offset: int) -> str:
        """The text that is stored at a byte offset from the start of a rank's region."""
        start = self.board(rank) * 8 + offset
        return self.memory[start + 8 : start + 8 + self.words[start // 8]].decode(errors="replace")

    def put_answer(self, rank: int, number: int, text: str) -> None:
        """Store the packed whereabouts of a rank, cut at 16,376 bytes, as its answer to roll call `number`."""
        self.write_text(rank, ANSWER, text, ANSWER_BYTES)
        fence()
        self.words[self.board(rank) + ANSWERED] = number

    def close(self) -> None:
        """Let go of the memory. It is unmapped once no array over it is left; the operating system frees it when the
        last rank has let go."""
        self.words.release()
        del self.words, self.bytes, self.memory
