"""Copies of tensors as they are at one moment, made while the memory that they are copied from does not change.

Weights and optimizer states are the same from one update to the next. So a thread can copy them during the next forward
and backward, and only the update waits for the copies that are left ("CheckFreq: Frequent, Fine-Grained DNN
Checkpointing", Mohan et al., FAST 2021).
"""

import threading
from collections.abc import Iterator, Mapping

import numpy as np

from parallel_core.checkpoint.lazy import NUMPY, LazyTensor, of_array
from parallel_core.checkpoint.tensor_file import as_lazy
from parallel_core.checkpoint.writer import LocalTensor
from parallel_core.numerics.dtypes import Array

PIECE = 8 << 20
"""Bytes that are copied at once, without Python's lock; whoever waits for another thread's copy waits for no more than
this."""


class HostMemory:
    """Memory for copies by tensor name, which is reused from one snapshot to the next. Memory that a process never
    touched is much slower to write: the system provides it page by page."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._lock = threading.Lock()

    def hold(self, tensors: Mapping[str, LocalTensor]) -> dict[str, Array]:
        """Name -> array for the bits of each of `tensors`, of the tensor's shape and with any values. Memory held under
        the same name is reused if shape and numpy type are the same; other memory is no longer held, and a `touch` that
        still runs stops."""
        wanted = as_lazy({name: tensor.values for name, tensor in tensors.items()})
        with self._lock:
            self._arrays = {name: self._fitting(name, tensor) for name, tensor in wanted.items()}
        return self._arrays

    def _fitting(self, name: str, tensor: LazyTensor) -> Array:
        shape, kind = tensor.shape, np.dtype(NUMPY[tensor.dtype])
        held = self._arrays.get(name)
        if held is not None and (held.shape, held.dtype) == (shape, kind):
            return held
        return np.empty(shape, kind)

    def touch(self, arrays: Mapping[str, Array]) -> None:
        """Write zeros to `arrays`, which `hold` has returned, so that the system provides them; stops early, or does
        nothing, if `hold` was called since: copies may be there."""
        for piece in (piece for array in arrays.values() for piece in _pieces(array)):
            with self._lock:
                if self._arrays is not arrays:
                    return
                piece.fill(0)


class Snapshot:
    """Copies of `tensors`, as they are when this is made, in `memory`: made by threads that call `copy` or `finish`.
    All are there after `finish`, unless a call raised an error; until then the tensors must not change. The next
    snapshot in `memory` may overwrite the copies."""

    def __init__(self, tensors: Mapping[str, LocalTensor], memory: HostMemory) -> None:
        sources, targets = as_lazy({name: tensor.values for name, tensor in tensors.items()}), memory.hold(tensors)
        self.tensors = {
            name: LocalTensor(tensor.place, of_array(targets[name], sources[name].dtype))
            for name, tensor in tensors.items()
        }
        """Name -> copy, which has its values once it is made."""
        self._left = _pairs([(source, targets[name]) for name, source in sources.items()])
        self._changed, self._under_way, self._is_through = threading.Condition(), 0, False

    @property
    def is_complete(self) -> bool:
        """Whether a call of `copy` has found no copy left to begin, and none is under way: all are made then, unless a
        call raised an error."""
        return self._is_through and not self._under_way

    def copy(self) -> None:
        """Make copies until none is left to begin. Several threads may call it at a time."""
        while (pair := self._take()) is not None:
            try:
                np.copyto(*pair)
            finally:
                self._put_down()

    def finish(self) -> None:
        """Make the copies that are left, and wait for those that another thread has begun."""
        self.copy()
        with self._changed:
            self._changed.wait_for(lambda: self.is_complete)

    def _take(self) -> tuple[Array, Array] | None:
        with self._changed:
            pair = next(self._left, None)
            self._is_through = pair is None
            self._under_way += pair is not None
        return pair

    def _put_down(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()


def _pairs(tensors: list[tuple[LazyTensor, Array]]) -> Iterator[tuple[Array, Array]]:
    """(memory to copy to, memory to copy from), piece by piece, of (source, target) tensors."""
    for source, target in tensors:
        yield from zip(_pieces(target), _pieces(source.read()), strict=True)


def _pieces(array: Array) -> Iterator[Array]:
    """The bytes of a contiguous array in pieces of at most PIECE."""
    flat = array.reshape(-1).view(np.uint8)
    return (flat[start : start + PIECE] for start in range(0, flat.size, PIECE))
