"""Memory at chosen addresses: every array that numpy allocates, and single arrays down to 2 bytes.

What malloc gives lies at a multiple of 16 bytes, and the parts of an array that kernels share out begin at any of its
elements. `allocations_at` moves the former, `placed` the latter.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

PAGE = 8192
"""Bytes of the unit of addresses: twice the largest distance by which tests move an array."""


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins `offset` bytes behind a multiple of PAGE."""
    memory = np.empty(array.nbytes + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class _Allocator(ctypes.Structure):
    """numpy's PyDataMemAllocator (NEP 49)."""

    _malloc = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _calloc = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    _realloc = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    _free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", _malloc),
        ("calloc", _calloc),
        ("realloc", _realloc),
        ("free", _free),
    )


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


class _Moved:
    """Functions that allocate `offset` bytes behind a multiple of PAGE."""

    def __init__(self, offset: int) -> None:
        self.offset, self._blocks, self._c = offset, dict[int, tuple[int, int]](), ctypes.CDLL(None)
        self._c.malloc.restype = self._c.calloc.restype = ctypes.c_size_t
        self._c.malloc.argtypes, self._c.free.argtypes = (ctypes.c_size_t,), (ctypes.c_size_t,)
        self._functions = (
            _Allocator._malloc(lambda _, size: self._new(size, zeroed=False)),
            _Allocator._calloc(lambda _, count, size: self._new(count * size, zeroed=True)),
            _Allocator._realloc(self._resized),
            _Allocator._free(lambda _, address, size: self._c.free(self._blocks.pop(address, (0, 0))[0])),
        )
        self._handler = _Handler(b"moved", 1, _Allocator(None, *self._functions))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # Python may free an array of this memory last of all
        self.capsule = new(ctypes.addressof(self._handler), b"mem_handler", None)

    def _new(self, size: int, zeroed: bool) -> int:
        start = self._c.malloc(size + 2 * PAGE)
        address = start + (-start % PAGE) + self.offset
        self._blocks[address] = start, size
        if zeroed:
            ctypes.memset(address, 0, size)
        return address

    def _resized(self, _: None, address: int, size: int) -> int:
        start, before = self._blocks.pop(address)
        new = self._new(size, zeroed=False)
        ctypes.memmove(new, address, min(size, before))
        self._c.free(start)
        return new


_SET_HANDLER = 304
"""Index of PyDataMem_SetHandler in numpy's table of C functions, which is part of its ABI."""

_moved = cache(_Moved)


def _set_handler(capsule: object) -> object:
    """Make numpy allocate by this handler; return the one before."""
    from numpy.core import _multiarray_umath

    at = ctypes.pythonapi.PyCapsule_GetPointer
    at.restype, at.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(at(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])(capsule)


@contextmanager
def allocations_at(offset: int) -> Iterator[None]:
    """Within the context, whatever numpy allocates in this thread begins `offset` bytes, a multiple of 16, behind a
    multiple of PAGE."""
    before = _set_handler(_moved(offset).capsule)
    try:
        yield
    finally:
        _set_handler(before)
