"""A thread in which writers write: no step waits for a disk or a server, and no error of theirs ends a run."""

import queue
import threading
from collections.abc import Callable

from pynative.startup.log import warn
from pynative.training.callbacks.writers.writer import Points, Writer

MOST_WAITING = 10_000
"""Steps whose points may wait; further ones are left out, and counted."""
CLOSING_SECONDS = 60.0
"""How long a run waits at its end for what is still to be written."""


class Background:
    """One writer and its thread.

    Args:
        name: of the writer in messages: the flag that asks for it.
        make: opens it, in the thread.
    """

    def __init__(self, name: str, make: Callable[[], Writer]) -> None:
        self._name, self._make = name, make
        self._points: queue.Queue[Points | None] = queue.Queue(MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=f"writes {name}", daemon=True)
        self._thread.start()

    def write(self, points: Points) -> None:
        """Hand them over, at once."""
        try:
            self._points.put_nowait(points)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Wait until everything is written, for a minute at most."""
        if self._thread.is_alive():
            self._points.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            warn(f"{self._name}: has not written everything {CLOSING_SECONDS:.0f} s after the last step; it is left")
        if self._lost:
            warn(f"{self._name}: was too slow; the points of {self._lost} steps are not in it")

    def _run(self) -> None:
        try:
            writer = self._make()
            while (points := self._points.get()) is not None:
                writer.write(points)
            writer.close()
        except Exception as error:  # whatever a back end raises, training goes on without it
            warn(f"{self._name}: {type(error).__name__}: {error}; nothing more is written there")
            while self._points.get() is not None:
                pass
