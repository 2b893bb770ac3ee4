"""A checkpoint that is written while training goes on (--async-save)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from mindspore import Tensor

from pynative import parallel_state
from pynative.checkpointing.save import Saving
from pynative.checkpointing.state import RunState
from pynative.collectives import PeerLost

_NICENESS = 19
"""Of the thread that writes: what training leaves of a core is enough for it."""


class BackgroundSave:
    """Copies of what is to be saved, and a thread that writes them.

    Collectives stay in the main thread: between two steps all ranks call `advance`, which agrees on how far they are.
    No rank publishes before all have written.
    """

    def __init__(self, directory: Path, state: RunState) -> None:
        saving = Saving.begin(directory, state, copies=True)
        self.path = saving.path
        self._work: list[Callable[[], None]] = [saving.write, saving.publish]
        self._error: BaseException | None = None
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self._work.pop(0),), name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            work()
        except BaseException as error:
            self._error = error

    def advance(self) -> bool:
        """Whether the checkpoint is whole; all ranks call this. Raises what went wrong, on every rank."""
        is_busy = self._thread.is_alive()
        failed = not is_busy and self._error is not None
        busy, any_failed = _highest(is_busy, failed)
        if any_failed:
            with suppress(PeerLost):  # Who is first to raise would otherwise keep the one at fault from saying why.
                parallel_state.get_world_group().barrier()
            reason = self._error or "another rank says why"
            raise RuntimeError(f"{self.path} could not be saved: {reason}") from self._error
        if busy:
            return False
        if self._work:
            self._start()
            return False
        return True

    def finish(self) -> None:
        """Wait until the checkpoint is whole; all ranks call this."""
        self._thread.join()
        while not self.advance():
            self._thread.join()


def _highest(*own: bool) -> list[bool]:
    """Whether each is so on any rank."""
    values = Tensor(np.array(own, np.int32))
    return parallel_state.get_world_group().all_reduce(values, op="max").asnumpy().astype(bool).tolist()
