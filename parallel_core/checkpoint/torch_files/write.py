"""Writing a file that `torch.load` reads: a zip archive of a pickle and of storages, tensor by tensor.

The pickle is written by hand: the standard library's pickler wants to import every class that a file names, and torch
is not here.
"""

import pickle
import struct
import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.torch_files.pickles import STORAGES, TypeName

_STORAGE_OF = {dtype: name for name, dtype in STORAGES.items()}


class Namespace(dict[str, Any]):
    """A dictionary that is written as an argparse.Namespace."""


def write_archive(path: Path, content: Any) -> None:
    """Write `content` for `torch.load`: dictionaries, lists, tuples, plain values, `TypeName`s, `Namespace`s, and
    `LazyTensor`s, which are read one by one. Plain values are None, truth values, texts, integers and floats. Raises
    AssertionError for a value of another type, KeyError for a tensor for whose type STORAGES has no class."""
    tensors: list[LazyTensor] = []
    data = b"".join((pickle.PROTO + b"\2", *_pickled(content, tensors), pickle.STOP))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        for number, tensor in enumerate(tensors):
            with archive.open(f"archive/data/{number}", "w", force_zip64=tensor.nbytes >= 1 << 31) as file:
                values: Any = np.ascontiguousarray(tensor.read()).reshape(-1).view(np.uint8).data
                file.write(values)
        archive.writestr("archive/version", "3\n")


def _pickled(value: Any, tensors: list[LazyTensor]) -> Iterable[bytes]:
    """The opcodes that put `value` on the unpickler's stack; its tensors are appended to `tensors`, and a storage is
    named by its tensor's place there."""
    if isinstance(value, LazyTensor):
        yield from _tensor(value, tensors)
    elif isinstance(value, Namespace):
        yield from (_named("argparse", "Namespace"), pickle.EMPTY_TUPLE, pickle.REDUCE)
        yield from (*_pickled(dict(value), tensors), pickle.BUILD)
    elif isinstance(value, TypeName):
        yield _named("torch", value)
    elif isinstance(value, dict):
        entries = (part for item in value.items() for one in item for part in _pickled(one, tensors))
        yield from (pickle.EMPTY_DICT, pickle.MARK, *entries, pickle.SETITEMS)
    elif isinstance(value, list):
        yield from (
            pickle.EMPTY_LIST,
            pickle.MARK,
            *(p for one in value for p in _pickled(one, tensors)),
            pickle.APPENDS,
        )
    elif isinstance(value, tuple):
        yield from (pickle.MARK, *(p for one in value for p in _pickled(one, tensors)), pickle.TUPLE)
    else:
        yield _plain(value)


def _tensor(value: LazyTensor, tensors: list[LazyTensor]) -> Iterable[bytes]:
    """The opcodes for a tensor: torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks),
    rows contiguous."""
    strides = tuple(prod(value.shape[axis + 1 :]) for axis in range(len(value.shape)))
    yield from (_named("torch._utils", "_rebuild_tensor_v2"), pickle.MARK)
    yield from (pickle.MARK, _plain("storage"), _named("torch", _STORAGE_OF[value.dtype]), _plain(str(len(tensors))))
    yield from (_plain("cpu"), _plain(prod(value.shape)), pickle.TUPLE, pickle.BINPERSID)
    tensors.append(value)
    for argument in (0, value.shape, strides, False):
        yield from _pickled(argument, tensors)
    yield from (_named("collections", "OrderedDict"), pickle.EMPTY_TUPLE, pickle.REDUCE, pickle.TUPLE, pickle.REDUCE)


def _named(module: str, name: str) -> bytes:
    """The opcode for an object that the reader of the file imports by module and name."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _plain(value: Any) -> bytes:
    """The opcodes for None, a truth value, a text, a float or an integer."""
    if value is None:
        return pickle.NONE
    if isinstance(value, bool):
        return pickle.NEWTRUE if value else pickle.NEWFALSE
    if isinstance(value, str):
        text = value.encode()
        return pickle.BINUNICODE + struct.pack("<I", len(text)) + text
    if isinstance(value, float):
        return pickle.BINFLOAT + struct.pack(">d", value)
    assert isinstance(value, int), value
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    number = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(number)]) + number
