"""Values of this process of which each of two computations that take turns has its own, as a thread has its locals.

They are not a thread's: the tape may call a backward from another one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_locals: WeakSet["Local[Any]"] = WeakSet()


class Local(Generic[T]):
    """One value: `value` is that of the computation whose turn it is."""

    def __init__(self, value: T) -> None:
        self.value = value
        _locals.add(self)

    @contextmanager
    def holding(self, value: T) -> Iterator[T]:
        """Within the block it is `value`; the earlier one comes back after it."""
        before, self.value = self.value, value
        try:
            yield value
        finally:
            self.value = before


Values = dict["Local[Any]", Any]


def values() -> Values:
    """The values of all, as they stand."""
    return {local: local.value for local in _locals}


def put_back(before: Values) -> None:
    """Give all the values that they had."""
    for local, value in before.items():
        local.value = value
