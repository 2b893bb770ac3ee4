"""The address of a rank in its job: its number, the number of ranks, and the place where the ranks meet."""

import ipaddress
import os
import socket
from dataclasses import dataclass

from parallel_core.system.environment import number_of

NETWORK_PREFIX = "tcp://"


@dataclass(frozen=True)
class Address:
    """A rank of a job of `world_size` ranks. All ranks of the job have the same `name`; on one host, jobs of one user
    that have several ranks and meet at the same time need different names. `timeout` is in seconds, for a wait for
    other ranks.

    A name `tcp://host:port` says that ranks may live on several hosts: rank 0 listens there while the ranks meet. Any
    other name joins the ranks of one host.
    """

    rank: int
    world_size: int
    name: str
    timeout: float

    @property
    def master(self) -> tuple[str, int] | None:
        """Host (without square brackets) and port of the name `tcp://host:port`; None for any name that does not begin
        with tcp://. Raises ValueError for a missing host, and for a port that is not from 1 to 65535."""
        if not self.name.startswith(NETWORK_PREFIX):
            return None
        host, _, port = self.name.removeprefix(NETWORK_PREFIX).rpartition(":")
        if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(
                f"{self.name}: the ranks meet at tcp://HOST:PORT with a port from 1 to 65535; change "
                "--master_addr and --master_port of msrun (MS_SCHED_HOST and MS_SCHED_PORT)"
            )
        return host.strip("[]"), int(port)


def address_from_environment(
    rank: int | None, world_size: int | None, address: str | None, timeout_minutes: float
) -> Address:
    """The address of this rank. Arguments that are None come from RANK_ID (0 if not set), RANK_SIZE (1), MS_SCHED_HOST
    (127.0.0.1) and MS_SCHED_PORT, as msrun sets them. Without `address`, the ranks meet on this host where
    MS_SCHED_HOST is a loopback address, or there is one rank; else at tcp://MS_SCHED_HOST:MS_SCHED_PORT. Raises
    ValueError for a rank that is not from 0 to the number of ranks less 1, for a RANK_ID or RANK_SIZE that is needed
    and no number, and if `rank` is None and msrun left the ranks unnumbered."""
    if rank is None and os.environ.get("MS_ROLE") == "MS_WORKER" and "MS_NODE_ID" not in os.environ:
        raise ValueError(
            "--node_rank: msrun left the ranks unnumbered (RANK_ID); on several hosts give each msrun its own "
            "--node_rank, 0 on the host of --master_addr"
        )
    rank = number_of("RANK_ID", default=0) if rank is None else rank
    world_size = number_of("RANK_SIZE", default=1) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"RANK_ID={rank} is not below RANK_SIZE={world_size}; start the ranks with msrun")
    if address is None:
        host, port = os.environ.get("MS_SCHED_HOST", "127.0.0.1"), os.environ.get("MS_SCHED_PORT", "")
        may_span_hosts = world_size > 1 and not is_loopback(host)
        address = f"{NETWORK_PREFIX}{host}:{port}" if may_span_hosts else f"port-{port or os.getppid()}"
    return Address(rank, world_size, address, 60 * timeout_minutes)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, such as 127.0.0.1 or ::1, or the name "localhost"; False for any other
    name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str) -> str:
    """The first IP address of a host name or IP address. Raises ValueError if this host does not know one."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ValueError(
            f"--master_addr {host} (MS_SCHED_HOST): no such host is known here ({error}); give the IP address that "
            "the other hosts reach the host of --node_rank 0 by"
        ) from error
