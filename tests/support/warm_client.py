"""Ask a `warm_server` for a process and end as it does: `warm_client.py SOCKET WORD ...`. It imports little, because it
is what tests start in the place of an interpreter."""

import ctypes
import json
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
"""The constant of linux/prctl.h."""
MOST_DESCRIPTORS = 16
NETWORK = "/proc/self/ns/net"


def ask(
    place: str,
    words: list[str],
    environment: dict[str, str],
    folder: str,
    descriptors: dict[int, int],
    network: str = NETWORK,
) -> tuple[socket.socket, int]:
    """Ask the server at `place` for a process: (connection, process id). descriptors: number there -> here; network:
    the path of a network namespace."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(place)
    order = {"words": words, "environment": environment, "folder": folder, "descriptors": list(descriptors)}
    text = json.dumps(order).encode()
    with open(network) as namespace:
        socket.send_fds(connection, [b"%d\n" % len(text)], [namespace.fileno(), *descriptors.values()])
    connection.sendall(text)
    return connection, number(connection)


def number(connection: socket.socket) -> int:
    """The integer on the connection's next line, such as an exit code; -SIGKILL if it closed, as the server and its
    forks were killed."""
    said = b""
    while not said.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return -signal.SIGKILL
        said += byte
    return int(said)


def main(place: str, words: list[str]) -> int:
    """Run the words as a fork with this process's environment and standard streams: its exit code; if a signal ended
    it, this process gets the same one."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection, _ = ask(place, words, dict(os.environ), os.getcwd(), {0: 0, 1: 1, 2: 2})
    code = number(connection)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
