"""One rank of `tests.support.distributed`: takes functions by name and answers with results; a fork of a
process in which no operator has run (`warm_server`)."""

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tests.support.distributed import Failed
from tests.support.two_hosts import job_address


def main(descriptor: int) -> None:
    """Answer the calls that come over this descriptor until its other end is closed."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _prepare_mindspore()
    connection = Connection(descriptor)
    seat = Seat()
    with contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(seat.answer(connection.recv_bytes()))


class Seat:
    """This rank's connections by world size, each kept from call to call until something fails."""

    def __init__(self) -> None:
        self.connections: dict[int, tuple[str, Any]] = {}

    def answer(self, order: bytes) -> bytes:
        """Execute a pickled order (address, world size, call); its pickled result, or a pickled Failed."""
        address, world_size, call = pickle.loads(order)
        os.environ["RANK_SIZE"] = str(world_size)
        try:
            module, name, args, kwargs = pickle.loads(call)
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            return pickle.dumps(function(self._connected(address, world_size), *args, **kwargs))
        except BaseException as error:
            failed = self._failure(error)
            if world_size in self.connections:
                self.connections[world_size][1].fail(error)
            return pickle.dumps(failed)

    def _connected(self, address: str, world_size: int) -> Any:
        from pynative.collectives import connect

        known, backend = self.connections.get(world_size, ("", None))
        if address != known:
            if backend is not None:
                with contextlib.suppress(RuntimeError):
                    backend.close()
            backend = connect(address=job_address(address), timeout_minutes=1.5)
            self.connections[world_size] = address, backend
        return backend

    def _failure(self, error: BaseException) -> Failed:
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = None
        rank = int(os.environ["RANK_ID"])
        return Failed(rank, time.time(), type(error).__name__, traceback.format_exc(), pickled)


def _prepare_mindspore() -> None:
    """MindSpore's operators have one thread, as ours have: ranks share the cores. Jobs choose their kernels.

    Arrays of a run's first step are counted where a test looks at them: of two steps it is a quarter of the time.
    What is imported lives as long as the process, so no collection of garbage need look at it: each takes 0.1 s.
    """
    from pynative.startup import device
    from pynative.training.callbacks import BesideCallback

    BesideCallback.counts_arrays = False
    for kernels in ("ops", "host"):
        device.initialize("CPU", kernels, threads=1, world_size=1)
    gc.freeze()


if __name__ == "__main__":
    main(int(sys.argv[1]))
