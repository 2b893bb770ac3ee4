"""How fast a writer in the background works: slowly, so that the training beside it keeps its caches and memory."""

import threading
import time

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.writer import LocalTensor

REST = 4.0
"""Seconds without work for each second of the processor's time that a writer took."""


class Pace:
    """Of one writer's thread: it rests from time to time, until somebody waits for what it does."""

    def __init__(self) -> None:
        self._is_awaited, self._worked = threading.Event(), 0.0

    def rest(self) -> None:
        """Do nothing for REST times what this thread has worked since it last rested."""
        self._is_awaited.wait(REST * (time.thread_time() - self._worked))
        self._worked = time.thread_time()

    def hurry(self) -> None:
        """From now on there is no rest."""
        self._is_awaited.set()

    def of(self, tensor: LocalTensor) -> LocalTensor:
        """The tensor, before which the thread that reads it rests."""
        values = tensor.values
        assert isinstance(values, LazyTensor), "a tensor in memory is read by nobody"

        def rested(array: np.ndarray) -> np.ndarray:
            self.rest()
            return array

        return tensor._replace(values=values.changed(values.shape, rested))
