"""Channels between ranks of different hosts: a TCP connection for each pair, and a thread that reads each.

A channel of the arena has one writer, and slots that it fills only when every reader has given them back. For a reader
on another host, the writer sends each post over the connection; the reader's thread stores it in a copy of the channel
in the reader's own region, raises the copy's counter and wakes the rank. When the rank gives the slot back, its counter
travels the other way. So algorithms, ledger and waiting are the same between hosts as within one, and results are equal
to the bit. A post is sent only when its slot is free, so the reader's thread takes whatever comes, wherever its program
is.

A rank's failure travels as text, and so does its place when ranks are asked for theirs; its death as the end of the
connection; the kernel's keep-alive finds a host that fell silent. What comes over the network is data only, and a
post's sizes are checked against the slot.
"""

import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.collectives.wire import arena as arena_words
from pynative.collectives.wire.arena import PAGE, Arena, ChannelLayout, order_memory

POST, CONSUMED, FAILURE, GOODBYE, ASKED, ANSWER = range(1, 7)
HEAD = struct.Struct("<BxxxIIQQIIII")
"""The fields before each message: its kind, bytes of its header, bytes of its payload; the channel's key; the number of
the post, of the posts given back, or of the question; the payload's first byte within the post's; the channel's slots,
bytes of a slot, and bytes of a header."""
NOTHING = np.empty(0, np.uint8)
LARGEST_CHANNEL = 64 << 20
SILENT_SECONDS = 16
"""Seconds after which a host that no longer answers is given up."""
GOODBYE_SECONDS = 10.0
FAREWELL_AFTER_FAILURE_SECONDS = 1.0


class Network:
    """This rank's connections to the ranks of other hosts; none in a job of one host."""

    def __init__(self, arena: Arena, connections: dict[int, socket.socket], timeout: float):
        self.arena = arena
        self.peers = connections
        self.lost: dict[int, str] = {}
        """Rank -> the reason why its connection ended, if without a goodbye; in the order of the ends."""
        self.ended = {rank: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for rank in connections}
        """A descriptor (eventfd) by rank, which turns readable when the connection ends; `waiting.py` closes it."""
        self._memory = memoryview(arena.memory)
        self._copies: dict[tuple[int, int], tuple[int, ChannelLayout]] = {}
        self._copying = threading.Lock()
        self._consumed_words: dict[tuple[int, int], int] = {}
        self._unusable: set[int] = set()
        self._sending = {rank: threading.Lock() for rank in connections}
        self._threads: list[threading.Thread] = []
        for connection in connections.values():
            _configure(connection, timeout)

    def start(self, wake: Callable[[], None], fail: Callable[[int, str], None]) -> None:
        """Begin to read, in a thread for each connection. `wake()` is called after every message, `fail(rank, text)`
        when a rank tells why it failed."""
        for rank in self.peers:
            thread = threading.Thread(target=self._read, args=(rank, wake, fail), daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, is_orderly: bool) -> None:
        """End the connections, after a wait for each other end to close its own: up to 10 s each if `is_orderly`, else
        up to 1 s each. With `is_orderly` this rank says goodbye before the wait."""
        for rank, connection in self.peers.items():
            if is_orderly:
                self._send(rank, GOODBYE)
            _shut_down(connection, socket.SHUT_WR)
        for thread in self._threads:
            thread.join(GOODBYE_SECONDS if is_orderly else FAREWELL_AFTER_FAILURE_SECONDS)
        for connection, thread in zip(self.peers.values(), self._threads, strict=True):
            _shut_down(connection, socket.SHUT_RDWR)
            thread.join()
            connection.close()
        self._memory.release()

    # Sending: the main thread sends messages, the roll call's thread sends places.

    def await_consumed(self, rank: int, key: int, word: int) -> None:
        """Have the thread that reads from `rank` store in the arena's word `word` how many posts of this rank's channel
        `key` that rank has given back; without effect for a rank of this host."""
        self._consumed_words[rank, key] = word

    def post(
        self, rank: int, key: int, layout: ChannelLayout, number: int, header: bytes, start: int, payload: Array
    ) -> None:
        """Send `rank` post `number` of this rank's channel `key`, which has this layout: its header, and `payload`,
        which is to lie in the post's payload from byte `start` on."""
        sizes = layout.slots, layout.slot_bytes, layout.header_bytes
        self._send(rank, POST, key, number, header, payload, start, *sizes)

    def give_back(self, rank: int, key: int, number: int) -> None:
        """Tell `rank`, the writer of channel `key`, that this rank has given back `number` posts so far."""
        self._send(rank, CONSUMED, key, number)

    def tell_failure(self, text: str) -> None:
        """Tell the ranks of other hosts why this rank failed."""
        for rank in self.peers:
            self._send(rank, FAILURE, payload=np.frombuffer(text.encode(), np.uint8))

    def ask(self, number: int) -> None:
        """Send question `number` of a roll call to the ranks of other hosts."""
        for rank in self.peers:
            self._send(rank, ASKED, number=number)

    def answer(self, rank: int, number: int, text: str) -> None:
        """Send a rank of another host this rank's answer to question `number` of a roll call."""
        self._send(rank, ANSWER, number=number, payload=np.frombuffer(text.encode(), np.uint8))

    def _send(
        self,
        rank: int,
        kind: int,
        key: int = 0,
        number: int = 0,
        header: bytes = b"",
        payload: Array = NOTHING,
        start: int = 0,
        slots: int = 0,
        slot_bytes: int = 0,
        header_bytes: int = 0,
    ) -> None:
        """Send a message. A connection that broke is no error here: whoever waits for that rank learns it from the
        reading thread.

        A connection that was left in the middle of a message, by a break or an interrupt, is not used again.
        """
        head = HEAD.pack(kind, len(header), payload.nbytes, key, number, start, slots, slot_bytes, header_bytes)
        with self._sending[rank]:
            self._send_parts(rank, [head, header, payload])

    def _send_parts(self, rank: int, parts: Sequence[Any]) -> None:
        if rank in self._unusable:
            return
        self._unusable.add(rank)
        try:
            _send_all(self.peers[rank], parts)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                self.lost[rank] = "took nothing for the whole time-out (--distributed-timeout-minutes)"
            _shut_down(self.peers[rank], socket.SHUT_RDWR)
        else:
            self._unusable.discard(rank)

    # Reading, one thread for each peer.

    def _read(self, rank: int, wake: Callable[[], None], fail: Callable[[int, str], None]) -> None:
        head = bytearray(HEAD.size)
        reason = "ended"
        try:
            while True:
                self._receive(rank, memoryview(head))
                kind, header, size, key, number, *place = HEAD.unpack(head)
                if kind == POST:
                    self._store(rank, header, size, key, number, *place)
                elif kind == CONSUMED:
                    self.arena.words[self._consumed_words[rank, key]] = number
                elif kind == FAILURE:
                    fail(rank, self._text(rank, size))
                elif kind == ASKED:
                    self.arena.words[arena_words.ASKED] = number
                elif kind == ANSWER:
                    self.arena.put_answer(rank, number, self._text(rank, size, arena_words.ANSWER_BYTES))
                elif kind == GOODBYE:
                    reason = ""
                else:
                    raise ValueError(f"kind {kind}")
                wake()
        except ConnectionError:
            """The process ended, and its host said so."""
        except OSError as error:
            reason = f"does not answer ({error})"
        except (ValueError, KeyError) as error:
            reason = f"sent what is no message of ours ({error})"
        finally:
            if reason:
                self.lost.setdefault(rank, reason)
            os.eventfd_write(self.ended[rank], 1)

    def _store(self, rank: int, header: int, size: int, key: int, number: int, start: int, *sizes: int) -> None:
        """Receive an arriving post into its slot of this rank's copy of the channel, and announce it. Raises ValueError
        for sizes or a number that cannot be. sizes: the arguments of the channel's layout."""
        base, layout = self._copy(rank, key, ChannelLayout(*sizes))
        if header > layout.header_bytes or start + size > layout.slot_bytes or number != self.arena.words[base // 8]:
            raise ValueError(f"post {number} of {header} + {start} + {size} bytes")
        slot = layout.header(base, 1, number)
        self._receive(rank, self._memory[slot : slot + header])
        slot += layout.header_bytes + start
        self._receive(rank, self._memory[slot : slot + size])
        order_memory()
        self.arena.words[base // 8] = number + 1

    def copy(self, rank: int, key: int, layout: ChannelLayout) -> int:
        """Byte offset of this rank's copy of the channel `key` that `rank`, of another host, writes. The first call
        makes the copy, with this layout, unless a post came before it; it raises ValueError for a layout without slots
        or of more than 64 MiB, MemoryError if the region of this rank is full."""
        return self._copy(rank, key, layout)[0]

    def _copy(self, rank: int, key: int, layout: ChannelLayout) -> tuple[int, ChannelLayout]:
        """Byte offset and layout of this rank's copy of a channel; made by whoever needs it first: the rank that will
        read, or the thread when the first post comes."""
        with self._copying:
            if (rank, key) not in self._copies:
                if not layout.slots or layout.size(1) > LARGEST_CHANNEL:
                    raise ValueError(f"a channel of {layout.slots} times {layout.slot_bytes} bytes")
                self._copies[rank, key] = self.arena.take(layout.size(1)), layout
            return self._copies[rank, key]

    def _text(self, rank: int, size: int, limit: int = PAGE) -> str:
        raw = bytearray(size)
        self._receive(rank, memoryview(raw))
        return raw[:limit].decode(errors="replace")

    def _receive(self, rank: int, place: memoryview) -> None:
        """Receive from a rank as many bytes as fill `place`. Raises ConnectionResetError if the connection ends."""
        connection = self.peers[rank]
        done = 0
        while done < len(place):
            count = connection.recv_into(place[done:], 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionResetError("the connection ended")
            done += count


def _configure(connection: socket.socket, timeout: float) -> None:
    """Set a connection's options: no delays; a host silent for SILENT_SECONDS is noticed; a send gives up after
    `timeout` seconds, a receive never does."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)
    seconds = max(1, int(timeout))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))


def _send_all(connection: socket.socket, parts: Sequence[Any]) -> None:
    """Send all parts, by one call unless the kernel's buffer is full."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    while views:
        sent = connection.sendmsg(views)
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


def _shut_down(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        """The other end was faster."""
