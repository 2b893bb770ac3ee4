"""The meeting of ranks on several hosts: they meet over TCP at rank 0, which tells all ranks who takes part.

Every rank brings what others need to know of it (`Member`), such as its host's identity: the boot of the machine and
its network and process namespaces, so that two containers with namespaces of their own are two hosts. Ranks of one
host go on over shared memory (`rendezvous.py`), pairs on different hosts over a TCP connection each
(`wire/network.py`). Everything here travels as JSON behind its length. Rank 0 hands out a random token, which a rank
that connects to one of another host shows there.
"""

import contextlib
import errno
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from parallel_core.system.processes import machine
from pynative.collectives.errors import PeerLate, PeerLost
from pynative.collectives.meeting.address import Address, resolve
from pynative.collectives.meeting.messages import receive, same_secret, send

RETRY_SECONDS = 0.1
NOTICE_SECONDS = 20.0
STRANGER_SECONDS = 5.0
"""Seconds within which a process that connects must say which rank it is."""
VERDICT_SECONDS = 2.0
CONNECT_SECONDS = 60.0
SECRET_VARIABLE = "PYNATIVE_JOB_SECRET"
_STRANGE = (OSError, ValueError, KeyError, TypeError, OverflowError)
"""Errors while a message is read that no rank of this job sends."""


@dataclass(frozen=True)
class Member:
    """A rank as others see it: its host's identity, the IP address and port at which it takes connections, and its
    process id."""

    rank: int
    host: str
    ip: str
    port: int
    pid: int

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Member":
        """The member that a message describes. Raises TypeError if a value is missing, unknown or of another type."""
        member = cls(**told)
        if any(type(getattr(member, field.name)) is not field.type for field in fields(cls)):
            raise TypeError(f"{told} describes no rank")
        return member


@dataclass(frozen=True)
class Membership:
    """All members of the job in rank order, and the job's token, a random text by which its ranks know each other."""

    members: tuple[Member, ...]
    token: str

    def ranks_of_host(self, rank: int) -> tuple[int, ...]:
        """The ranks on the host of `rank`, ascending."""
        return tuple(member.rank for member in self.members if member.host == self.members[rank].host)


def membership(address: Address) -> tuple[Membership, dict[int, socket.socket]]:
    """Meet all ranks at `address.master`, which is not None, and return (the members, rank -> connection for each rank
    of another host).

    Raises ValueError for an address that cannot be right, for ranks that disagree about the number of ranks, and for a
    rank that comes twice or is too large; PeerLate if ranks did not come in time; PeerLost (or its subclass PeerLate)
    if rank 0 ended meanwhile or has another secret (PYNATIVE_JOB_SECRET), or if a connection between two hosts fails.
    """
    assert address.master is not None
    deadline = time.monotonic() + address.timeout
    host, port = address.master
    master = resolve(host), port
    with contextlib.ExitStack() as stack:
        if address.rank == 0:
            meeting = stack.enter_context(_listen(master))
            listener = stack.enter_context(_bound(master[0]))
            found = _call_the_roll(meeting, _this_member(0, listener), address, deadline)
        else:
            connection = stack.enter_context(_reach(master, address, deadline))
            listener = stack.enter_context(_bound(connection.getsockname()[0]))
            found = _answer_the_roll(connection, _this_member(address.rank, listener), address, deadline)
        return found, _connect_hosts(found, address, listener)


def _this_member(rank: int, listener: socket.socket) -> Member:
    ip, port = listener.getsockname()[:2]
    return Member(rank, host_identity(), ip, port, os.getpid())


def host_identity() -> str:
    """A text with the ids of the machine's boot and of this process's network and process namespaces, equal for
    processes that share them all; where /proc does not have them, the host's name."""
    return machine("net", "pid")


# At rank 0 ------------------------------------------------------------------------------------------------------------


def _listen(master: tuple[str, int]) -> socket.socket:
    where = f"--master_addr {master[0]} --master_port {master[1]} (MS_SCHED_HOST, MS_SCHED_PORT)"
    try:
        return _bound(*master)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = "that port of this host is taken; choose another --master_port, the same on all hosts"
        else:
            problem = (
                "rank 0 runs on this host, which does not have that address; start the host of --master_addr with "
                "--node_rank 0, or give an address of this host"
            )
        raise ValueError(f"{where}: {problem} ({error})") from error


def _bound(ip: str, port: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.create_server((ip, port), family=family, backlog=1024)


def _call_the_roll(meeting: socket.socket, mine: Member, address: Address, deadline: float) -> Membership:
    members = {0: mine}
    with contextlib.ExitStack() as stack:
        callers: list[socket.socket] = []
        try:
            while len(members) < address.world_size:
                connection = stack.enter_context(_accept(meeting, address, members, deadline))
                hello = _hello(connection)
                if hello is None:
                    continue
                world_size, member = hello
                callers.append(connection)
                _check(world_size, member, address, members)
                members[member.rank] = member
        except (ValueError, PeerLate) as error:
            verdict = {"problem": str(error), "ranks": getattr(error, "ranks", None)}
            _tell(callers, verdict)
            raise
        found = Membership(tuple(members[rank] for rank in sorted(members)), secrets.token_hex(16))
        _tell(callers, asdict(found))
        return found


def _accept(listener: socket.socket, address: Address, present: Iterable[int], deadline: float) -> socket.socket:
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        missing = sorted(set(range(address.world_size)) - set(present))
        raise PeerLate(
            f"rank 0 waited {address.timeout:.0f} s at {address.name}: rank(s) {missing} of {address.world_size} never "
            "came; start msrun on their hosts with the same --worker_num, --master_addr and --master_port, each with "
            "its own --node_rank (--distributed-timeout-minutes sets the time)",
            missing,
        ) from None
    connection.settimeout(STRANGER_SECONDS)
    return connection


def _hello(connection: socket.socket) -> tuple[int, Member] | None:
    """(World size that the caller believes in, the caller); None if the caller is no rank of this job."""
    try:
        hello = receive(connection)
        is_ours = same_secret(hello["secret"], _secret())
        return (int(hello["world_size"]), Member.of(hello["member"])) if is_ours else None
    except _STRANGE:
        return None


def _check(world_size: int, member: Member, address: Address, present: Iterable[int]) -> None:
    problem = None
    if world_size != address.world_size:
        problem = (
            f"--worker_num: rank {member.rank} believes in {world_size} ranks, rank 0 in {address.world_size} "
            "(RANK_SIZE); give all hosts the same"
        )
    elif member.rank in present or not 0 < member.rank < address.world_size:
        problem = (
            f"--node_rank: two processes call themselves rank {member.rank}, or it is not below {address.world_size} "
            "(RANK_ID); give each host its own"
        )
    if problem:
        raise ValueError(problem)


def _tell(connections: Iterable[socket.socket], message: dict[str, Any]) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):  # the process has ended; the ranks that need it will notice
            send(connection, message)


# At the other ranks ---------------------------------------------------------------------------------------------------


def _reach(master: tuple[str, int], address: Address, deadline: float) -> socket.socket:
    """A connection to rank 0, which may start later than this rank. Its host may, too: while that is not up, the error
    is EHOSTUNREACH, after which it is tried again. Raises PeerLate after `deadline`, ValueError for an address to which
    this host has no way."""
    start, noticed = time.monotonic(), False
    while True:
        try:
            return socket.create_connection(master, timeout=max(0.01, min(5.0, deadline - time.monotonic())))
        except OSError as error:
            reason = error
        if reason.errno in (errno.ENETUNREACH, errno.EINVAL, errno.EADDRNOTAVAIL, errno.EACCES):
            raise ValueError(
                f"--master_addr {master[0]} (MS_SCHED_HOST): this host has no way to it ({reason}); give the address "
                "that this host reaches the host of --node_rank 0 by"
            ) from reason
        waited = time.monotonic() - start
        text = f"rank {address.rank} waited {waited:.0f} s: rank 0 never came to {address.name} ({reason})"
        advice = (
            "is the host of --master_addr started with --node_rank 0, and are --master_addr and --master_port right?"
        )
        if time.monotonic() > deadline:
            raise PeerLate(f"{text}; {advice}", [0]) from None
        if waited > NOTICE_SECONDS and not noticed:
            print(f"{text.replace('never came', 'has not come')}; {advice}", file=sys.stderr, flush=True)
            noticed = True
        time.sleep(RETRY_SECONDS)


def _answer_the_roll(connection: socket.socket, mine: Member, address: Address, deadline: float) -> Membership:
    # Waits longer than rank 0, which can name the missing rank.
    connection.settimeout(max(0.001, deadline - time.monotonic()) + VERDICT_SECONDS)
    try:
        send(connection, {"world_size": address.world_size, "member": asdict(mine), "secret": _secret()})
        answer = receive(connection)
    except TimeoutError:
        text = f"rank {address.rank} met rank 0, but another rank did not come in {address.timeout:.0f} s"
        raise PeerLate(text) from None
    except (OSError, ValueError):
        raise PeerLost(
            f"rank 0 ended while the ranks met at {address.name}, or is of another job ({SECRET_VARIABLE} differs)", [0]
        ) from None
    if "problem" in answer:
        ranks = answer["ranks"]
        raise ValueError(answer["problem"]) if ranks is None else PeerLate(answer["problem"], ranks)
    members = tuple(Member(**member) for member in answer["members"])
    return Membership(members, answer["token"])


# Between all ----------------------------------------------------------------------------------------------------------


def _connect_hosts(found: Membership, address: Address, listener: socket.socket) -> dict[int, socket.socket]:
    """A connection by rank to every rank of another host: the higher rank connects, the lower one accepts."""
    me = address.rank
    here = found.ranks_of_host(me)
    others = [member for member in found.members if member.rank not in here]
    connections = {member.rank: _connect(member, me, found) for member in others if member.rank < me}
    awaited = {member.rank for member in others if member.rank > me}
    for rank, connection in _callers(listener, awaited, found.token):
        connections[rank] = connection
    for connection in connections.values():
        connection.settimeout(None)
    return connections


def _connect(member: Member, me: int, found: Membership) -> socket.socket:
    try:
        connection = socket.create_connection((member.ip, member.port), timeout=CONNECT_SECONDS)
        send(connection, {"token": found.token, "rank": me})
        return connection
    except OSError as error:
        raise PeerLost(
            f"rank {me} ({found.members[me].ip}) cannot connect to rank {member.rank} at {member.ip}:{member.port}: "
            f"{error}; it ended, or a firewall closes the ports between the hosts",
            [member.rank],
        ) from error


def _callers(listener: socket.socket, awaited: set[int], token: str) -> Iterator[tuple[int, socket.socket]]:
    """Yield (rank, connection) as the ranks of `awaited` connect; a caller without the token is turned away."""
    missing = set(awaited)
    deadline = time.monotonic() + CONNECT_SECONDS
    while missing:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            ranks = sorted(missing)
            raise PeerLost(
                f"rank(s) {ranks} did not connect to {listener.getsockname()[:2]} in {CONNECT_SECONDS:.0f} s: they "
                "ended, or a firewall closes the ports between the hosts",
                ranks,
            ) from None
        connection.settimeout(STRANGER_SECONDS)
        rank = _rank_of(connection, token)
        if rank in missing:
            missing.discard(rank)
            yield rank, connection
        else:
            connection.close()


def _rank_of(connection: socket.socket, token: str) -> int:
    """The rank of the caller; -1 for one without the token."""
    try:
        hello = receive(connection)
        return int(hello["rank"]) if same_secret(hello["token"], token) else -1
    except _STRANGE:
        return -1


def _secret() -> str:
    """The secret that a rank must show at rank 0's port; "" unless all hosts set one, so that anybody may join."""
    return os.environ.get(SECRET_VARIABLE, "")
