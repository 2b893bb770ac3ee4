"""oneDNN's C interface through ctypes: the library that MindSpore's x86-64 wheel carries.

A call on a plain stream runs in the calling thread, and ctypes releases the GIL meanwhile, so the host kernels' own
threads share out the rows. Numbers are those of oneDNN 3's headers (dnnl_types.h, dnnl_common_types.h).
"""

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from parallel_core.numerics.dtypes import Array

Handle = ctypes.c_void_p


class Type(IntEnum):
    """oneDNN's numbers of the types of entries, dnnl_data_type_t."""

    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT32 = 3


class Algorithm(IntEnum):
    """oneDNN's numbers of operations, dnnl_alg_kind_t."""

    RELU = 0x20
    TANH = 0x21
    SQUARE = 0x23
    SQRT = 0x25
    LINEAR = 0x26
    EXP = 0x2A
    GELU_TANH = 0x2B
    SWISH = 0x2C
    POWER = 0x30
    GELU_ERF = 0x31
    ADD = 0x1FFF0
    MULTIPLY = 0x1FFF1
    MINIMUM = 0x1FFF3
    SUBTRACT = 0x1FFF5


class Argument(IntEnum):
    """DNNL_ARG_*: the role of a memory in an execution."""

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
    MULTIPLE_SOURCE = 1024
    """Argument number of the first of several sources; the next ones count on."""
    POST_OP = 32768
    """DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) is (i + 1) times this, plus SOURCE_1 for a binary one."""


FORWARD_TRAINING, BACKWARD = 64, 128
USE_SCALE, USE_SHIFT, RMS_NORM = 0x2, 0x4, 0x20
SCRATCHPAD_OF_USER = 1
_CPU, _IN_ORDER, _QUERY_SCRATCHPAD, _QUERY_IMPLEMENTATION = 1, 1, 136, 8


class OneDnnError(RuntimeError):
    """A call of oneDNN returned another status than success."""


R = TypeVar("R")
_making = threading.RLock()


def once(make: Callable[..., R], kept: int | None = None) -> Callable[..., R]:
    """Cache of `make`, called with positional arguments alone: equal ones give the same result object, made a single
    time whichever threads ask at once, as long as it is remembered.

    kept: at least so many results are remembered, those asked for last; None: all. `functools.cache` alone lets two
    threads make one each, and oneDNN refuses a stream of another engine than its primitive's.
    """
    made_before = lru_cache(kept)(make)

    @wraps(make)
    def locked(*arguments: Hashable) -> R:
        with _making:
            return made_before(*arguments)

    return lru_cache(kept)(locked)


def _find() -> Path | None:
    """The path of oneDNN's library in the installed MindSpore, found without importing MindSpore; None if there is
    none."""
    from importlib.util import find_spec

    spec = find_spec("mindspore")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folder) / "lib" / "libdnnl.so.3" for folder in folders or ())
    return next((path for path in found if path.exists()), None)


@once
def library() -> ctypes.CDLL | None:
    """The loaded library of oneDNN; None where it is missing (aarch64, macOS) or cannot be loaded."""
    path = _find()
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


_RESULTS = {"primitive_desc_query_md": Handle, "memory_desc_get_size": ctypes.c_size_t}
"""Result types of the functions that return no status."""


def function(name: str) -> Callable[..., Any]:
    """The library's function dnnl_`name`, with its result type set. Raises AttributeError if there is none."""
    found: Any = getattr(library(), f"dnnl_{name}")
    found.restype = _RESULTS.get(name, ctypes.c_int)
    return cast(Callable[..., Any], found)


@once
def set_address() -> Callable[[int, int], int]:
    """The function dnnl_memory_set_data_handle(memory, address) -> status, called with the GIL held: releasing it would
    take longer. Raises AssertionError if the library's file is missing, OSError if it cannot be loaded."""
    path = _find()
    assert path is not None, "no memory without the library"
    keeping = ctypes.PyDLL(str(path)).dnnl_memory_set_data_handle
    keeping.argtypes = (Handle, Handle)
    return keeping


def call(name: str, *arguments: object) -> None:
    """Call dnnl_`name`; raises OneDnnError for any status but success."""
    status = function(name)(*arguments)
    if status:
        raise OneDnnError(f"dnnl_{name} returned status {status}")


def made(name: str, *arguments: object) -> Handle:
    """The handle that the function dnnl_`name`, such as "engine_create", makes. arguments: the function's, without its
    first, the place of the handle. Raises OneDnnError for any status but success."""
    handle = Handle()
    call(name, ctypes.byref(handle), *arguments)
    return handle


def let_go(owner: object, name: str, handles: Sequence[Handle | int]) -> None:
    """Call dnnl_`name`, such as "memory_destroy", on each of `handles` (objects or addresses) once `owner` is
    garbage-collected; not when the process ends."""
    destroy = function(name)
    weakref.finalize(owner, lambda: [destroy(Handle(_value(handle))) for handle in handles]).atexit = False


def _value(handle: Handle | int) -> int | None:
    return handle if isinstance(handle, int) else handle.value


@once
def engine() -> Handle:
    """oneDNN's engine of the CPU, one for the process. From the first call on, oneDNN itself caches at most
    LIBRARY_KEEPS primitives."""
    call("set_primitive_cache_capacity", LIBRARY_KEEPS)
    return made("engine_create", _CPU, ctypes.c_size_t(0))


LIBRARY_KEEPS = 128
"""Primitives that the library remembers, those of MindSpore's own operators among them; left alone it keeps 1024."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Type, shape and strides of an array, with oneDNN's memory descriptor of it.

    `layout` makes them: equal layouts are one object, so that looking something up by layouts compares no numbers.
    """

    kind: Type
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in elements."""
    descriptor: Handle


_layouts: WeakValueDictionary[tuple[Any, ...], Layout] = WeakValueDictionary()


def layout(kind: Type, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """The Layout of this type, shape and strides (in elements): the same object as long as anybody holds it, and not
    longer, since a sequence that grows has other shapes in every step. Raises OneDnnError for one that oneDNN
    refuses."""
    with _making:
        found = _layouts.get((kind, shape, strides))
        if found is None:
            dimensions, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
            handle = made("memory_desc_create_with_strides", len(shape), dimensions, int(kind), steps)
            found = _layouts[kind, shape, strides] = Layout(kind, shape, strides, handle)
            let_go(found, "memory_desc_destroy", [handle])
        return found


def dense(kind: Type, *shape: int) -> Layout:
    """The Layout of a C-contiguous array of this type and shape."""
    return layout(kind, shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))


class _Argument(ctypes.Structure):
    _fields_ = (("name", ctypes.c_int), ("memory", Handle))


_DATA = object.__basicsize__
"""The offset in an array's header of the address of its first entry: numpy's binary interface, right after Python's
own."""

_word_at = ctypes.c_size_t.from_address


def address_of(array: Array) -> int:
    """The address of an array's first entry; `array.ctypes.data` takes eight times as long."""
    return _word_at(id(array) + _DATA).value


class _Thread(threading.local):
    """A thread's own stream and scratch memory."""

    def __init__(self) -> None:
        self.scratch = np.empty(0, np.uint8)

    @cached_property
    def stream(self) -> Handle:
        return made("stream_create", engine(), _IN_ORDER)

    def scratch_of(self, size: int) -> Array:
        """Scratch memory of at least `size` bytes, which the thread's primitives use in turn."""
        if self.scratch.size < size:
            self.scratch = np.empty(size, np.uint8)
        return self.scratch


class _Arguments:
    """The arguments with which one thread executes a primitive, made once; only the memories' addresses change with a
    call."""

    def __init__(self, names: Sequence[int], descriptors: Sequence[Handle], stream: Handle) -> None:
        memories = [made("memory_create", description, engine(), None) for description in descriptors]
        pairs = [_Argument(name, memory) for name, memory in zip(names, memories, strict=True)]
        self.memories = [int(memory.value or 0) for memory in memories]
        self.stream, self.count = stream, len(pairs)
        self.array = (_Argument * self.count)(*pairs)
        let_go(self, "memory_destroy", self.memories)


_thread = _Thread()


class Primitive:
    """An operation on fixed layouts, made once and executed on any arrays of those layouts.

    Args:
        described: handle of the primitive descriptor, which is freed with this object.
        arguments: (argument, layout) of each array that a call gives, in that order.
        forward: for a backward primitive, the descriptor of its forward; it is freed, too.
    """

    def __init__(
        self, described: Handle, arguments: Sequence[tuple[int, Layout]], forward: Handle | None = None
    ) -> None:
        self._handle = made("primitive_create", described)
        self._described = described  # keeps the scratchpad's descriptor alive
        self._names = [int(name) for name, _ in arguments]
        self._layouts = [layout for _, layout in arguments]  # keep the other descriptors alive
        self._descriptors = [layout.descriptor for layout in self._layouts]
        scratchpad = Handle(function("primitive_desc_query_md")(described, _QUERY_SCRATCHPAD, 0))
        self._scratch_bytes = int(function("memory_desc_get_size")(scratchpad))
        if self._scratch_bytes:
            self._names.append(int(Argument.SCRATCHPAD))
            self._descriptors.append(scratchpad)
        name = ctypes.c_char_p()
        call("primitive_desc_query", described, _QUERY_IMPLEMENTATION, 0, ctypes.byref(name))
        self.implementation = (name.value or b"").decode()
        self._set_address, self._execute = set_address(), function("primitive_execute")
        self._own: dict[int, _Arguments] = {}  # by thread id; a new thread may reuse an ended one's id and arguments
        let_go(self, "primitive_destroy", [self._handle])
        let_go(self, "primitive_desc_destroy", [described] if forward is None else [described, forward])

    def __call__(self, *arrays: Array) -> None:
        """Execute on the arrays' memory, in the order of `arguments`. Raises OneDnnError for a status of failure."""
        arguments = self._own.get(get_ident()) or self._arguments()
        if self._scratch_bytes:
            arrays = (*arrays, _thread.scratch_of(self._scratch_bytes))
        for memory, array in zip(arguments.memories, arrays, strict=True):
            self._set_address(memory, address_of(array))
        status = self._execute(self._handle, arguments.stream, arguments.count, arguments.array)
        if status:
            raise OneDnnError(f"{self.implementation} returned status {status}")

    def prepared(self, *arrays: Array) -> Callable[[], None]:
        """A function that executes the primitive on these arrays, which it keeps: at any time in any thread, but not in
        two at once. It raises OneDnnError for a status of failure."""
        if self._scratch_bytes:
            arrays = (*arrays, np.empty(self._scratch_bytes, np.uint8))
        arguments = _Arguments(self._names, self._descriptors, made("stream_create", engine(), _IN_ORDER))
        let_go(arguments, "stream_destroy", [arguments.stream])
        for memory, array in zip(arguments.memories, arrays, strict=True):
            self._set_address(memory, address_of(array))
        given = self._handle, arguments.stream, arguments.count, arguments.array

        def execute(kept: object = (arguments, arrays)) -> None:
            status = self._execute(*given)
            if status:
                raise OneDnnError(f"{self.implementation} returned status {status}")

        return execute

    def _arguments(self) -> _Arguments:
        """Make and keep the calling thread's arguments, when it executes the primitive for the first time."""
        own = self._own[get_ident()] = _Arguments(self._names, self._descriptors, _thread.stream)
        return own
