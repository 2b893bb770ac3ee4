"""Process-wide values of which each of two computations that take turns (`tape/turns.py`) has its own.

They are no thread-locals: the tape may call a backward from another thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_locals: WeakSet["Local[Any]"] = WeakSet()


class Local(Generic[T]):
    """A process-wide value of which each computation that takes turns with another has its own: `value` is the running
    computation's (`pynative.tape.turns`)."""

    def __init__(self, value: T) -> None:
        self.value = value
        _locals.add(self)

    @contextmanager
    def holding(self, value: T) -> Iterator[T]:
        """Set `value` within the block, and restore the earlier one after it."""
        before, self.value = self.value, value
        try:
            yield value
        finally:
            self.value = before


Values = dict["Local[Any]", Any]


def values() -> Values:
    """The current value of every `Local` of the process, to be given to `put_back`."""
    return {local: local.value for local in _locals}


def put_back(before: Values) -> None:
    """Set every `Local` in `before` to the value that it has there."""
    for local, value in before.items():
        local.value = value
