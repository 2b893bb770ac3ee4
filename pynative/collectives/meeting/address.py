"""The address of a rank in its job: its number, the number of ranks, and the place where the ranks meet."""

import ipaddress
import os
import socket
from dataclasses import dataclass

NETWORK_PREFIX = "tcp://"


@dataclass(frozen=True)
class Address:
    """A rank of a job of `world_size` ranks. `name` is what the ranks of the job share and no other job has; `timeout`
    is the seconds for which they wait for each other.

    A name `tcp://host:port` says that ranks may live on several hosts: rank 0 listens there while the ranks meet. Any
    other name joins the ranks of one host.
    """

    rank: int
    world_size: int
    name: str
    timeout: float

    @property
    def master(self) -> tuple[str, int] | None:
        """Host and port of the name `tcp://host:port`; None for a job of one host. Raises ValueError for a missing
        host, and for a port that is not from 1 to 65535."""
        if not self.name.startswith(NETWORK_PREFIX):
            return None
        host, _, port = self.name.removeprefix(NETWORK_PREFIX).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(
                f"{self.name}: the ranks meet at tcp://HOST:PORT with a port from 1 to 65535; change "
                "--master_addr and --master_port of msrun (MS_SCHED_HOST and MS_SCHED_PORT)"
            )
        return host.strip("[]"), int(port)


def address_from_environment(
    rank: int | None, world_size: int | None, address: str | None, timeout_minutes: float
) -> Address:
    """The address of this rank. Arguments that are None come from RANK_ID, RANK_SIZE, MS_SCHED_HOST and MS_SCHED_PORT,
    as msrun sets them; without these it is rank 0 of 1. Where MS_SCHED_HOST is a loopback address, or there is one
    rank, the ranks meet on this host. Raises ValueError for a RANK_ID that is not below RANK_SIZE, for values that are
    no numbers, and if msrun left the ranks of several hosts unnumbered."""
    if rank is None and os.environ.get("MS_ROLE") == "MS_WORKER" and "MS_NODE_ID" not in os.environ:
        raise ValueError(
            "--node_rank: msrun left the ranks unnumbered (RANK_ID); on several hosts give each msrun its own "
            "--node_rank, 0 on the host of --master_addr"
        )
    rank = _number("RANK_ID", 0) if rank is None else rank
    world_size = _number("RANK_SIZE", 1) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK_ID={rank} is not below RANK_SIZE={world_size}; start the ranks with msrun")
    if address is None:
        host, port = os.environ.get("MS_SCHED_HOST", "127.0.0.1"), os.environ.get("MS_SCHED_PORT", "")
        may_span_hosts = world_size > 1 and not is_loopback(host)
        address = f"{NETWORK_PREFIX}{host}:{port}" if may_span_hosts else f"port-{port or os.getppid()}"
    return Address(rank, world_size, address, 60 * timeout_minutes)


def is_loopback(host: str) -> bool:
    """Whether an IP address reaches only this host, so that all ranks that share it run here; of names only "localhost"
    does."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str) -> str:
    """The IP address of a host name. Raises ValueError for a name that is not known here."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ValueError(
            f"--master_addr {host} (MS_SCHED_HOST): no such host is known here ({error}); give the IP address that "
            "the other hosts reach the host of --node_rank 0 by"
        ) from error


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is not a number; msrun sets it (with --node_rank on several hosts)")
    return int(text)
