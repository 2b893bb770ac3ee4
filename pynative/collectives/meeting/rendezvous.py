"""The meeting of the ranks of one host: they meet at an abstract Unix socket and pass file descriptors.

The lowest rank of the host listens at a name made of user and job; the others bring their rank and their doorbell (an
eventfd), and take home the arena's memory, everybody's doorbell and everybody's process id. An abstract socket has no
file, and is gone when it is closed or its process ends.
"""

import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pynative.collectives.errors import PeerLate, PeerLost
from pynative.collectives.wire.arena import Arena

RETRY_SECONDS = 0.02
VERDICT_SECONDS = 1.0
SEVERAL_HOSTS = "; if it is on another host, give msrun --master_addr an address of rank 0's host instead of 127.0.0.1"
LARGEST_HOST = 200
"""Ranks that one host may have: the kernel limits the descriptors of one message to 253."""


@dataclass
class Rendezvous:
    """The result of the meeting: the arena's file descriptor and, by rank of this host, doorbells (eventfds) and
    process ids."""

    memory: int
    doorbells: dict[int, int]
    pids: dict[int, int]


@dataclass(frozen=True)
class Place:
    """The meeting place of the ranks of one host: this rank, all ranks of the host (ascending), the number of ranks of
    the job, the name that the host's ranks share, and the seconds that they wait for each other."""

    rank: int
    ranks: tuple[int, ...]
    world_size: int
    name: str
    timeout: float

    @property
    def socket_name(self) -> str:
        """The Unix socket's name, made of the user's id and `name`; its leading zero byte makes it abstract."""
        return f"\0pynative-collectives-{os.getuid()}-{self.name}"


def meet(place: Place) -> Rendezvous:
    """Meet the other ranks of this host, and return doorbells and process ids of all of them, this one's too, and the
    arena's memory. Raises PeerLost (or its subclass PeerLate) if some do not come in time, if one is found to have
    ended, and, on ranks above the lowest, if that one gives up; ValueError for more than 200 ranks on the host, and, on
    the lowest rank and on one that it refuses, if ranks clash: the same rank twice, another number of ranks, or, on the
    lowest rank alone, another job under this name. A name of which the system makes no socket is a ValueError on the
    lowest rank, an OSError on the others."""
    if len(place.ranks) > LARGEST_HOST:
        raise ValueError(f"{len(place.ranks)} ranks on one host: the shared_memory backend takes {LARGEST_HOST}")
    deadline = time.monotonic() + place.timeout
    doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    if len(place.ranks) == 1:
        memory, rank = Arena.create(place.world_size), place.rank
        return Rendezvous(memory, {rank: doorbell}, {rank: os.getpid()})
    return _host(place, doorbell, deadline) if place.rank == place.ranks[0] else _join(place, doorbell, deadline)


def _host(place: Place, doorbell: int, deadline: float) -> Rendezvous:
    peers: dict[int, tuple[socket.socket, int, int]] = {}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        _bind(listener, place)
        while len(peers) < len(place.ranks) - 1:
            connection = stack.enter_context(_accept(listener, place, peers.keys(), deadline))
            rank, peer = _welcome(connection, place, peers.keys())
            peers[rank] = (connection, *peer)
        doorbells = {place.rank: doorbell} | {rank: peers[rank][1] for rank in sorted(peers)}
        pids = {place.rank: os.getpid()} | {rank: peers[rank][2] for rank in sorted(peers)}
        memory = Arena.create(place.world_size)
        answer = json.dumps({"pids": list(pids.values())}).encode()
        for rank, (connection, _, _) in peers.items():
            try:
                socket.send_fds(connection, [answer], [memory, *doorbells.values()])
            except OSError as error:
                raise PeerLost(f"rank {rank} (pid {pids[rank]}) ended while the ranks met", [rank]) from error
    return Rendezvous(memory, doorbells, pids)


def _bind(listener: socket.socket, place: Place) -> None:
    try:
        listener.bind(place.socket_name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ValueError(
                f"the ranks of this host cannot meet at {place.name}: the system makes no Unix socket of that name "
                f"({error}); give another address"
            ) from error
        raise ValueError(
            f"another job of yours on this host already meets at {place.name}, or two processes call themselves "
            "rank 0; give each job its own port (msrun --master_port, or MS_SCHED_PORT)"
        ) from error
    listener.listen(place.world_size)


def _accept(listener: socket.socket, place: Place, present: Iterable[int], deadline: float) -> socket.socket:
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise _late(place, present) from None
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    return connection


def _late(place: Place, present: Iterable[int], silent: str = "") -> PeerLate:
    """The error that ranks did not come in time. silent: who came and did not say which rank it is, behind a
    semicolon."""
    missing = sorted(set(place.ranks[1:]) - set(present))
    return PeerLate(
        f"rank {place.rank} waited {place.timeout:.1f} s at {place.name}: rank(s) {missing} of "
        f"{place.world_size} never came{silent} (--distributed-timeout-minutes sets the time){SEVERAL_HOSTS}",
        missing,
    )


def _welcome(connection: socket.socket, place: Place, present: Collection[int]) -> tuple[int, tuple[int, int]]:
    """(rank, (doorbell, pid)) of a rank that came. A rank that does not fit is told why; then ValueError is raised.
    Raises PeerLate for a process that does not say in time which rank it is."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
    except TimeoutError:
        raise _late(place, present, f"; process {pid} came and did not say which rank it is") from None
    if uid != os.getuid() or not descriptors:
        raise PeerLost(f"process {pid} of user {uid} came to the meeting at {place.name} and was turned away")
    hello = json.loads(raw)
    rank = hello["rank"]
    problem = None
    if hello["world_size"] != place.world_size:
        problem = f"rank {rank} believes in {hello['world_size']} ranks, rank 0 in {place.world_size} (RANK_SIZE)"
    elif rank in present or rank not in place.ranks[1:]:
        problem = f"two processes call themselves rank {rank}, or it is not below {place.world_size} (RANK_ID)"
    if problem:
        connection.send(json.dumps({"problem": problem}).encode())
        raise ValueError(problem)
    return rank, (descriptors[0], pid)


def _join(place: Place, doorbell: int, deadline: float) -> Rendezvous:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        _connect(connection, place, deadline)
        hello = json.dumps({"rank": place.rank, "world_size": place.world_size}).encode()
        # Waits longer than rank 0, which can name the missing rank and so reports the error.
        connection.settimeout(max(0.001, deadline - time.monotonic()) + VERDICT_SECONDS)
        try:
            socket.send_fds(connection, [hello], [doorbell])
            raw, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, LARGEST_HOST + 1)
        except TimeoutError:
            text = (
                f"rank {place.rank} met rank {place.ranks[0]}, but another rank did not come in {place.timeout:.1f} s"
            )
            raise PeerLate(text) from None
        except OSError:
            raw = b""
    answer = json.loads(raw or "{}")
    if "problem" in answer:
        raise ValueError(answer["problem"])
    if not answer:
        host = place.ranks[0]
        raise PeerLost(f"rank {host} ended, or gave up on another rank, while the ranks met", [host])
    doorbells = dict(zip(place.ranks, descriptors[1:], strict=True))
    os.close(doorbells[place.rank])
    doorbells[place.rank] = doorbell
    return Rendezvous(descriptors[0], doorbells, dict(zip(place.ranks, answer["pids"], strict=True)))


def _connect(connection: socket.socket, place: Place, deadline: float) -> None:
    host = place.ranks[0]
    while True:
        try:
            return connection.connect(place.socket_name)
        except (ConnectionRefusedError, BlockingIOError):
            if time.monotonic() > deadline:
                raise PeerLate(
                    f"rank {place.rank} waited {place.timeout:.1f} s: rank {host} never came to {place.name}"
                    f"{SEVERAL_HOSTS}",
                    [host],
                ) from None
            time.sleep(RETRY_SECONDS)
