"""oneDNN's C interface through ctypes: the library that MindSpore's x86-64 wheel carries.

A call on a plain stream runs in the calling thread, and ctypes releases the GIL meanwhile, so the host kernels' own
threads share out the rows. Numbers are those of oneDNN 3's headers (dnnl_types.h, dnnl_common_types.h).
"""

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import TypeVar

import numpy as np

Handle = ctypes.c_void_p


class Type(IntEnum):
    """dnnl_data_type_t."""

    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT32 = 3


class Algorithm(IntEnum):
    """dnnl_alg_kind_t."""

    RELU = 0x20
    SQUARE = 0x23
    LINEAR = 0x26
    LOGISTIC = 0x29
    EXP = 0x2A
    GELU_TANH = 0x2B
    SWISH = 0x2C
    GELU_ERF = 0x31
    ADD = 0x1FFF0
    MULTIPLY = 0x1FFF1
    SUBTRACT = 0x1FFF5
    SOFTMAX = 0x30000
    LOG_SOFTMAX = 0x30001


class Argument(IntEnum):
    """DNNL_ARG_*: what an execution's memory is."""

    SOURCE = 1
    SOURCE_1 = 2
    DESTINATION = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    SCRATCHPAD = 80
    DIFF_SOURCE = 129
    DIFF_DESTINATION = 145
    DIFF_SCALE = 255
    DIFF_SHIFT = 256
    POST_OP = 32768
    """DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) is (i + 1) times this, plus SOURCE_1 for a binary one."""


FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128
USE_SCALE, USE_SHIFT, RMS_NORM = 0x2, 0x4, 0x20
SCRATCHPAD_OF_USER = 1
_CPU, _IN_ORDER, _QUERY_SCRATCHPAD, _QUERY_IMPLEMENTATION = 1, 1, 136, 8


class OneDnnError(RuntimeError):
    """oneDNN refused a call."""


R = TypeVar("R")
_making = threading.RLock()


def once(make: Callable[..., R]) -> Callable[..., R]:
    """`make`, whose result for the same arguments is made a single time, whichever threads ask for it at once.

    `functools.cache` alone lets two threads make one each: oneDNN refuses a stream of another engine than its
    primitive's, and a primitive that is let go of leaves its place to another.
    """
    made_before = cache(make)

    @wraps(make)
    def locked(*arguments: Hashable) -> R:
        with _making:
            return made_before(*arguments)

    return cache(locked)


def _find() -> Path | None:
    """The library beside the installed MindSpore, without importing that."""
    from importlib.util import find_spec

    spec = find_spec("mindspore")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folder) / "lib" / "libdnnl.so.3" for folder in folders or ())
    return next((path for path in found if path.exists()), None)


@once
def library() -> ctypes.CDLL | None:
    """oneDNN, or None where it is missing (aarch64, macOS)."""
    path = _find()
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


def call(name: str, *arguments: object) -> None:
    """Call dnnl_`name`; raises OneDnnError for any status but success."""
    status = getattr(library(), f"dnnl_{name}")(*arguments)
    if status:
        raise OneDnnError(f"dnnl_{name} returned status {status}")


def made(name: str, *arguments: object) -> Handle:
    """The handle that a dnnl_`name`_create function makes."""
    handle = Handle()
    call(name, ctypes.byref(handle), *arguments)
    return handle


@once
def engine() -> Handle:
    """The CPU."""
    return made("engine_create", _CPU, ctypes.c_size_t(0))


class Layout(tuple):
    """(type, shape, strides in elements): what oneDNN calls a memory descriptor."""

    __slots__ = ()

    @staticmethod
    def dense(kind: Type, *shape: int) -> "Layout":
        """Rows one after another."""
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        return Layout((kind, shape, strides))


@once
def descriptor(layout: Layout) -> Handle:
    """The memory descriptor of a layout, kept for the life of the process."""
    kind, shape, strides = layout
    dimensions = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*strides)
    return made("memory_desc_create_with_strides", len(shape), dimensions, int(kind), steps)


class _Argument(ctypes.Structure):
    _fields_ = (("name", ctypes.c_int), ("memory", Handle))


class _Thread(threading.local):
    """A thread's own stream and scratch memory, and its memory objects of each primitive."""

    def __init__(self) -> None:
        self.slots: dict[Primitive, _Slots] = {}
        self.scratch = np.empty(0, np.uint8)

    @cached_property
    def stream(self) -> Handle:
        return made("stream_create", engine(), _IN_ORDER)

    def scratch_address(self, size: int) -> Handle:
        """At least so many bytes, which the thread's primitives use in turn."""
        if self.scratch.size < size:
            self.scratch = np.empty(size, np.uint8)
        return Handle(self.scratch.ctypes.data)


class _Slots:
    """What one thread executes a primitive with: memory objects whose addresses change from call to call."""

    def __init__(self, arguments: Sequence[tuple[int, Handle]], scratchpad: Handle | None) -> None:
        self.memories = [made("memory_create", description, engine(), None) for _, description in arguments]
        everything = [_Argument(name, memory) for (name, _), memory in zip(arguments, self.memories, strict=True)]
        self.scratchpad = None if scratchpad is None else made("memory_create", scratchpad, engine(), None)
        if self.scratchpad is not None:
            everything.append(_Argument(int(Argument.SCRATCHPAD), self.scratchpad))
        self.count = len(everything)
        self.array = (_Argument * self.count)(*everything)


_thread = _Thread()


class Primitive:
    """An operation on fixed layouts, made once and executed on any addresses.

    Args:
        described: handle of the primitive descriptor.
        arguments: (argument, layout) of each address that a call gives, in that order.
    """

    def __init__(self, described: Handle, arguments: Sequence[tuple[int, Layout]]) -> None:
        self._handle = made("primitive_create", described)
        self._arguments = [(int(name), descriptor(layout)) for name, layout in arguments]
        query = library().dnnl_primitive_desc_query_md  # type: ignore[union-attr]
        query.restype = Handle
        scratchpad = Handle(query(described, _QUERY_SCRATCHPAD, 0))
        size = library().dnnl_memory_desc_get_size  # type: ignore[union-attr]
        size.restype = ctypes.c_size_t
        self._scratch_bytes = int(size(scratchpad))
        self._scratchpad = scratchpad if self._scratch_bytes else None
        self._described = described  # owns the scratchpad's descriptor
        name = ctypes.c_char_p()
        call("primitive_desc_query", described, _QUERY_IMPLEMENTATION, 0, ctypes.byref(name))
        self.implementation = (name.value or b"").decode()
        self._set = library().dnnl_memory_set_data_handle  # type: ignore[union-attr]
        self._execute = library().dnnl_primitive_execute  # type: ignore[union-attr]

    def __call__(self, *addresses: int) -> None:
        """Execute on memory at these addresses; the caller keeps it alive."""
        slots = _thread.slots.get(self)
        if slots is None:
            slots = _thread.slots[self] = _Slots(self._arguments, self._scratchpad)
        if slots.scratchpad is not None:
            self._set(slots.scratchpad, _thread.scratch_address(self._scratch_bytes))
        for memory, address in zip(slots.memories, addresses, strict=True):
            self._set(memory, Handle(address))
        status = self._execute(self._handle, _thread.stream, slots.count, slots.array)
        if status:
            raise OneDnnError(f"{self.implementation} returned status {status}")
