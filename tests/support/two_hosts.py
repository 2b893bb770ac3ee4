"""Two hosts on one machine: network namespaces with a cable between them.

Processes in different namespaces have no abstract socket, no loopback and (by their identity) no memory in common, so
for the collectives they are on different hosts. Needs root, or at least CAP_NET_ADMIN and CAP_SYS_ADMIN, and `ip`.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_pairs = itertools.count()
"""Numbers of the pairs of hosts: several may exist at once, as a pool of ranks keeps its own."""

MASTER_VARIABLE = "TWO_HOSTS_MASTER"
"""Environment variable of a rank: the address of rank 0's host."""


def job_address(name: str) -> str:
    """The address for `connect` of a job of that name: the name itself on one host, on two a TCP port of the first."""
    master = os.environ.get(MASTER_VARIABLE)
    return f"tcp://{master}:{20_000 + zlib.crc32(name.encode()) % 12_000}" if master else name


@dataclass(frozen=True)
class Host:
    """A network namespace as a host: its address, and the words that start a command in it (`prefix`)."""

    address: str
    prefix: tuple[str, ...]

    @property
    def network(self) -> str:
        """The path of the host's network namespace."""
        return f"/run/netns/{self.prefix[-1]}"


def why_not() -> str:
    """The reason why this machine cannot make network namespaces; empty if it can."""
    if shutil.which("ip") is None:
        return "`ip` is not installed (apt-get install iproute2)"
    name = f"try{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable, for the time of the context; deleting their namespaces cuts the cable."""
    pair = next(_pairs)
    names = [f"host{i}-{os.getpid()}-{pair}" for i in range(2)]
    hosts = tuple(Host(f"10.77.0.{i + 1}", ("ip", "netns", "exec", name)) for i, name in enumerate(names))
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, host in zip(names, hosts, strict=True):
            _ip("-n", name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def cut_the_cable(host: Host) -> None:
    """Let no packet leave or reach that host from now on."""
    _ip("-n", host.prefix[-1], "link", "set", "eth0", "down")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
