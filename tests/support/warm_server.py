"""A process that has imported MindSpore and the sources, and forks what tests would start as new interpreters:
`python -m tests.support.warm_server SOCKET PID`.

An import of MindSpore takes three seconds of a processor, a fork some milliseconds. MindSpore's threads begin with its
first operator, of which this process runs none, so that a fork misses none of them (POSIX, fork).
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tests.support.warm_client import MOST_DESCRIPTORS, NETWORK, PR_SET_PDEATHSIG

CLONE_NEWNET = 0x40000000
"""The constant of linux/sched.h."""
IMPORTED = ("pynative.training.training", "pynative.transformer.gpt_model", "pynative.generation.command", "mapping")
"""Modules imported before forking, which import nearly all others."""


class Order(NamedTuple):
    """A wanted process: the words behind `python`, its environment and its folder."""

    words: list[str]
    environment: dict[str, str]
    folder: str


class Server:
    """The forks by process id, with the connections of those who asked for them: a fork is killed when its connection
    ends, and its end is told there."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.asked: dict[int, socket.socket] = {}
        self.ended, self._wake = socket.socketpair()
        for end in (self.ended, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Order:
        """Fork for everybody who asks; returns the order in each fork, and never in the server."""
        while True:
            readable, _, _ = select.select([self.listener, self.ended, *self.asked.values()], [], [])
            if self.ended in readable:
                self._reap()
            for pid, who in self.asked.items():
                if who in readable:  # the caller sends nothing: readable means that it ended
                    os.kill(pid, signal.SIGKILL)
            if self.listener in readable and (order := self._accept()):
                return order

    def _reap(self) -> None:
        """Tell those who asked how their forks ended."""
        with contextlib.suppress(BlockingIOError):
            while self.ended.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                who = self.asked.pop(found[0])
                with contextlib.suppress(BrokenPipeError), who:
                    who.sendall(b"%d\n" % os.waitstatus_to_exitcode(found[1]))

    def _accept(self) -> Order | None:
        """Read an order and fork: the order in the fork, None in the server."""
        who, _ = self.listener.accept()
        received, descriptors, _, _ = socket.recv_fds(who, 2**20, MOST_DESCRIPTORS)
        size, _, text = received.partition(b"\n")
        while len(text) < int(size):
            text += who.recv(2**20)
        server = os.getpid()
        pid = os.fork()
        if pid:
            for descriptor in descriptors:
                os.close(descriptor)
            who.sendall(b"%d\n" % pid)
            self.asked[pid] = who
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(server)
        for end in (who, self.listener, self.ended, self._wake, *self.asked.values()):
            end.close()
        order, (network, *others) = json.loads(text), descriptors
        _enter(network)
        _adopt(others, order.pop("descriptors"))
        return Order(**order)


def _enter(network: int) -> None:
    """Join the network namespace of this descriptor, unless this process is in it."""
    if os.fstat(network).st_ino != os.stat(NETWORK).st_ino and ctypes.CDLL(None).setns(network, CLONE_NEWNET):
        raise PermissionError("setns")
    os.close(network)


def _adopt(received: list[int], wanted: list[int]) -> None:
    """Renumber received descriptors to the numbers wanted for them."""
    beyond = max(received + wanted) + 1
    moved = [os.dup2(descriptor, beyond + i) for i, descriptor in enumerate(received)]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends; end at once if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become(order: Order) -> None:
    """Run this process as an interpreter with the order's words: `-m MODULE ...`, `-c CODE ...` or `FILE ...`."""
    import numpy as np

    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    random.seed()
    np.random.seed()
    option, *rest = order.words
    paths = [path for path in order.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if option == "-m":
        sys.argv, sys.path[:0] = rest, [order.folder, *paths]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], ["", *paths]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv, sys.path[:0] = order.words, [str(Path(option).resolve().parent), *paths]
        runpy.run_path(option, run_name="__main__")


def main(place: str, parent: int) -> None:
    """Serve at this socket path until the parent ends; in a fork, run the order and end as an interpreter does."""
    die_with(parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{place}.new")
    listener.listen(64)  # connections wait until all is imported
    os.rename(f"{place}.new", place)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    order = Server(listener).serve()
    # a forked process starts its own children by a fork, too
    sys.executable = str(Path(place).with_name("bin") / "python")
    try:
        become(order)
        code = 0
    except SystemExit as ended:
        code = _code(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    _leave(code)


def _code(given: object) -> int:
    """The exit code for the argument of `sys.exit`, which is printed if it is no number."""
    if given is None or isinstance(given, int):
        return given or 0
    print(given, file=sys.stderr)
    return 1


def _leave(code: int) -> None:
    """End as an interpreter does, without taking its modules apart, which in a fork copies their memory: a third of a
    second."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        print(f"Exception ignored: {error!r}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
