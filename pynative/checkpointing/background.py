"""The saving of a checkpoint while training goes on (--async-save)."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import mindspore

from parallel_core.checkpoint.snapshot import HostMemory, Snapshot
from pynative.checkpointing.agreement import SaveFailed, all_succeeded, highest
from pynative.checkpointing.local_tensors import local_tensors
from pynative.checkpointing.save import Saving
from pynative.checkpointing.state import RunState

_NICENESS = 19
"""Niceness of the thread that copies and writes: the time that training leaves of a core is enough for it."""


def prepared_memory(state: RunState) -> HostMemory:
    """Host memory for copies of what this rank saves; a thread, which may still run when this returns, writes zeros
    to it so that the system provides it."""
    memory = HostMemory()
    arrays = memory.hold(local_tensors(state))
    _in_background(lambda: memory.touch(arrays))
    return memory


class BackgroundSave:
    """A checkpoint under way: a thread copies the tensors that this rank saves, and then writes them. On an Ascend they
    are copied at once, when this is made.

    All ranks make it together; that raises as `Saving.begin` does. Before weights or states change, the main thread
    calls `finish_copies`. Collectives stay in the main thread, too: between two steps all ranks call `advance`, which
    agrees on how far they are. Rank 0 publishes when all have written.
    """

    def __init__(self, directory: Path, state: RunState, memory: HostMemory) -> None:
        saving = Saving.begin(directory, state)
        self.path, self._snapshot = saving.path, Snapshot(saving.tensors, memory)
        self._saving = replace(saving, tensors=self._snapshot.tensors)
        self._work: list[Callable[[], None]] = [self._write, self._saving.publish]
        self._error: BaseException | None = None
        self._was_told = False
        if mindspore.get_context("device_target") != "CPU":
            self.finish_copies()  # only the main thread reads a device's memory
        self._start()

    def _write(self) -> None:
        self._snapshot.finish()
        self._saving.write()

    def finish_copies(self) -> None:
        """Make the copies that are left, and wait for the thread's; to be called before the weights or states
        change."""
        self._snapshot.finish()
        self._was_told = True

    def check_copies(self) -> None:
        """Raise RuntimeError if `finish_copies` was never called: after an update weights may then have changed while
        they were copied."""
        if not self._was_told:
            raise RuntimeError(
                f"{self.path}: is given up: weights were changed while they were copied; a loop of one's own calls "
                f"before_change of its callbacks ahead of each update, by the step's before_update"
            )

    def _start(self) -> None:
        work = self._work.pop(0)
        self._thread = _in_background(lambda: self._run(work))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def advance(self) -> bool:
        """Whether the checkpoint is published; starts the next piece of work when all ranks have finished the present
        one. All ranks call this. Raises `SaveFailed` on all if one could not write, RuntimeError on this rank for any
        other error of its thread."""
        if any(highest(self._thread.is_alive())):
            return False
        if self._error is not None and not isinstance(self._error, OSError):
            raise RuntimeError(f"{self.path} could not be saved: {self._error}") from self._error
        try:
            all_succeeded(self.path, self._error)
        except SaveFailed:
            self._saving.end()
            raise
        if self._work:
            self._start()
            return False
        self._saving.end()
        return True

    def finish(self) -> None:
        """Wait until the checkpoint is published; all ranks call this. Raises `SaveFailed` on all if one could not
        write, RuntimeError on this rank for any other error of its thread."""
        self._thread.join()
        while not self.advance():
            self._thread.join()


def _in_background(work: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread of the lowest priority that runs `work`."""

    def run() -> None:
        with suppress(AttributeError, OSError):  # some systems have one priority for the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        work()

    thread = threading.Thread(target=run, name="checkpoint", daemon=True)
    thread.start()
    return thread
