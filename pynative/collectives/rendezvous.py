"""How the ranks of one host find each other: they meet at rank 0's abstract Unix socket and pass file descriptors.

Rank 0 listens at a name derived from the job's address; the others bring their rank and their doorbell (an eventfd),
and take home the arena's memory, everybody's doorbell and everybody's process id as the kernel tells it. An abstract
socket has no file and vanishes with its process.
"""

import contextlib
import json
import os
import socket
import struct
import time
from dataclasses import dataclass

from pynative.collectives.arena import Arena
from pynative.collectives.errors import PeerLate, PeerLost

RETRY_SECONDS = 0.02
VERDICT_SECONDS = 1.0
LARGEST_WORLD = 200
"""Descriptors of one message are limited to 253 by the kernel; more ranks of one host are another tool's job."""


@dataclass
class Meeting:
    """What a rank brings home: the arena's descriptor and, by rank, doorbells (eventfds) and process ids.

    `port` is a TCP port of this host that was free a moment ago, the same for all ranks.
    """

    memory: int
    doorbells: list[int]
    pids: list[int]
    port: int


@dataclass(frozen=True)
class Address:
    """Where a rank belongs: its number, the number of ranks, the name of their meeting point, seconds to wait."""

    rank: int
    world_size: int
    place: str
    timeout: float

    @property
    def socket_name(self) -> str:
        """The leading zero byte makes the name abstract."""
        return f"\0pynative-collectives-{os.getuid()}-{self.place}"


def meet(address: Address) -> Meeting:
    """Meet the other ranks. Raises PeerLate naming the ranks that did not come, ValueError if two ranks clash."""
    if address.world_size > LARGEST_WORLD:
        raise ValueError(f"{address.world_size} ranks on one host: the shared_memory backend takes {LARGEST_WORLD}")
    deadline = time.monotonic() + address.timeout
    doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    if address.world_size == 1:
        return Meeting(Arena.create(1), [doorbell], [os.getpid()], _free_port())
    return _host(address, doorbell, deadline) if address.rank == 0 else _join(address, doorbell, deadline)


def _host(address: Address, doorbell: int, deadline: float) -> Meeting:
    guests: dict[int, tuple[socket.socket, int, int]] = {}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        _bind(listener, address)
        while len(guests) < address.world_size - 1:
            connection = stack.enter_context(_accept(listener, address, guests.keys(), deadline))
            rank, guest = _welcome(connection, address, guests.keys())
            guests[rank] = (connection, *guest)
        doorbells = [doorbell] + [guests[rank][1] for rank in sorted(guests)]
        pids = [os.getpid()] + [guests[rank][2] for rank in sorted(guests)]
        memory, port = Arena.create(address.world_size), _free_port()
        news = json.dumps({"pids": pids, "port": port}).encode()
        for rank, (connection, _, _) in guests.items():
            try:
                socket.send_fds(connection, [news], [memory, *doorbells])
            except OSError as error:
                raise PeerLost(f"rank {rank} (pid {pids[rank]}) ended while the ranks met", [rank]) from error
    return Meeting(memory, doorbells, pids, port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _bind(listener: socket.socket, address: Address) -> None:
    try:
        listener.bind(address.socket_name)
    except OSError as error:
        raise ValueError(
            f"another job of yours on this host already meets at {address.place}, or two processes call themselves "
            "rank 0; give each job its own port (msrun --master_port, or MS_SCHED_PORT)"
        ) from error
    listener.listen(address.world_size)


def _accept(listener: socket.socket, address: Address, present, deadline: float) -> socket.socket:
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        missing = sorted(set(range(1, address.world_size)) - set(present))
        raise PeerLate(
            f"rank 0 waited {address.timeout:.1f} s at {address.place}: rank(s) {missing} of {address.world_size} "
            "never came (--distributed-timeout-minutes sets the time)",
            missing,
        ) from None
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    return connection


def _welcome(connection: socket.socket, address: Address, present) -> tuple[int, tuple[int, int]]:
    """(rank, (doorbell, pid)) of a guest; a guest that does not fit is told why."""
    raw, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid() or not descriptors:
        raise PeerLost(f"process {pid} of user {uid} came to the meeting at {address.place} and was turned away")
    hello = json.loads(raw)
    rank = hello["rank"]
    problem = None
    if hello["world_size"] != address.world_size:
        problem = f"rank {rank} believes in {hello['world_size']} ranks, rank 0 in {address.world_size} (RANK_SIZE)"
    elif rank in present or not 0 < rank < address.world_size:
        problem = f"two processes call themselves rank {rank}, or it is not below {address.world_size} (RANK_ID)"
    if problem:
        connection.send(json.dumps({"problem": problem}).encode())
        raise ValueError(problem)
    return rank, (descriptors[0], pid)


def _join(address: Address, doorbell: int, deadline: float) -> Meeting:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        _connect(connection, address, deadline)
        hello = json.dumps({"rank": address.rank, "world_size": address.world_size}).encode()
        # A little longer than rank 0 waits: it knows which rank is missing, so the word is its.
        connection.settimeout(max(0.001, deadline - time.monotonic()) + VERDICT_SECONDS)
        try:
            socket.send_fds(connection, [hello], [doorbell])
            raw, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, LARGEST_WORLD + 1)
        except TimeoutError:
            story = f"rank {address.rank} met rank 0, but another rank did not come in {address.timeout:.1f} s"
            raise PeerLate(story) from None
        except OSError:
            raw = b""
    answer = json.loads(raw or "{}")
    if "problem" in answer:
        raise ValueError(answer["problem"])
    if not answer:
        raise PeerLost("rank 0 ended, or gave up on another rank, while the ranks met", [0])
    os.close(descriptors[1 + address.rank])
    descriptors[1 + address.rank] = doorbell
    return Meeting(descriptors[0], list(descriptors[1:]), answer["pids"], answer["port"])


def _connect(connection: socket.socket, address: Address, deadline: float) -> None:
    while True:
        try:
            return connection.connect(address.socket_name)
        except (ConnectionRefusedError, BlockingIOError):
            if time.monotonic() > deadline:
                raise PeerLate(
                    f"rank {address.rank} waited {address.timeout:.1f} s: rank 0 never came to {address.place}", [0]
                ) from None
            time.sleep(RETRY_SECONDS)
