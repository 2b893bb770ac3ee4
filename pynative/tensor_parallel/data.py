"""Broadcast of data that only the first rank of a tensor-parallel group has, by the functions of Megatron's scripts."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from parallel_core.batch.documents import dense_mask
from parallel_core.batch.micro_batches import ATTENTION_MASK, DOCUMENT_STARTS, ENTRIES, BatchEntry
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state
from pynative.context_parallel.batch import entry_of, to_tensor
from pynative.memory.arrays import array_type

Arrays = dict[str, Array]

END = "end of data"
"""Name of the one entry that a group's first rank sends instead of an item when its iterator is at its end."""


def broadcast_item(item: Mapping[str, Any] | None) -> Arrays:
    """The arrays and tensors in the `item` of the tensor-parallel group's first rank, by name, as arrays on all ranks
    of the group; those without an axis and other values of that item are left out. Other ranks' items are ignored.

    The message's size is sent first, so a rank waits for its device here: where speed counts, give every rank its data.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    entries = {name: entry_of(name, value) for name, value in (item or {}).items()}
    arrays = {name: entry.array for name, entry in entries.items() if isinstance(entry, BatchEntry)}
    if group.size == 1:
        return arrays
    shapes = json.dumps([(name, array.dtype.name, array.shape) for name, array in arrays.items()]).encode()
    message = b"" if group.rank else b"".join([shapes, *(array.tobytes() for array in arrays.values())])
    sizes = group.broadcast(Tensor(np.array([len(shapes), len(message)], np.int64)), 0).asnumpy().tolist()
    words = np.zeros(-(-sizes[1] // 4), np.int32)
    words.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
    received = group.broadcast(Tensor.from_numpy(words), 0).asnumpy().view(np.uint8)
    return dict(_unpacked(received, sizes[0])) if group.rank else arrays


def _unpacked(received: Array, start: int) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) from a message whose first `start` bytes are names, types and shapes as JSON."""
    for name, kind, shape in json.loads(received[:start].tobytes()):
        stop = start + math.prod(shape) * np.dtype(kind).itemsize
        yield name, received[start:stop].copy().view(kind).reshape(shape)
        start = stop


def broadcast_data(keys: Sequence[str], data: Mapping[str, Any] | None, datatype: mindspore.Type) -> dict[str, Tensor]:
    """The entries `keys` of the first rank's `data`, on every rank of the tensor-parallel group, as tensors of
    `datatype` (Megatron's function). Raises ValueError for a key that the data lack or whose value has no axis, and
    KeyError for a datatype other than bool, int32, int64, and the floating-point ones of 16, 32 and 64 bits."""
    item = broadcast_item(data)
    if missing := [key for key in keys if key not in item]:
        raise ValueError(f"broadcast_data: the data have no {', '.join(missing)}, but {', '.join(item) or 'nothing'}")
    return {key: to_tensor(BatchEntry.of(key, item[key].astype(array_type(datatype), copy=False))) for key in keys}


def get_batch_on_this_tp_rank(data_iterator: Iterator[Any] | None) -> dict[str, Tensor | None]:
    """The next item of the tensor-parallel group's first rank, on all ranks of the group: tokens, labels, loss_mask,
    attention_mask, position_ids, in this order; None for what the item lacks (Megatron's function). `data_iterator` may
    be None on the other ranks; on the first rank None raises ValueError. At the end of the first rank's iterator
    StopIteration is raised on all ranks.

    A stage of a pipeline gets all entries, whether its model reads them or not. From an item with document_starts and
    no attention_mask the mask, bool [b, 1, s, s], is made here, since Megatron's scripts pass it on.
    """
    draws = parallel_state.get_tensor_model_parallel_rank() == 0
    if draws and data_iterator is None:
        raise ValueError("get_batch_on_this_tp_rank: data_iterator is None on a group's first rank, which has to draw")
    end = {END: np.zeros(1, np.int32)}
    item = broadcast_item(next(data_iterator, end) if draws and data_iterator is not None else None)
    if END in item:
        raise StopIteration("get_batch_on_this_tp_rank: the data_iterator of the group's first rank is at its end")
    starts = item.get(DOCUMENT_STARTS)
    if starts is not None and ATTENTION_MASK not in item:
        item[ATTENTION_MASK] = dense_mask(starts)
    return {name: to_tensor(BatchEntry.of(name, item[name])) if name in item else None for name in ENTRIES}
