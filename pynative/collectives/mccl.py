"""MindSpore's own collectives on a CPU (mccl), with what is missing there composed from what is.

mccl has all_reduce, all_gather, broadcast, isend and irecv, of any type but bool, of at least one entry. It has one
untagged first-in-first-out stream for each pair of ranks, whatever the group: who calls in here has made sure that
both ends agree what comes next (`native.py`). Ranks here are global; arrays are flat, contiguous numpy arrays.
"""

import importlib
from collections.abc import Sequence
from datetime import timedelta

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.communication import GlobalComm, create_group
from mindspore.communication.management import _init_with_store
from mindspore.mint import distributed

from pynative.collectives.arrays import Kind, reduce_into, to_numpy, to_tensor

_groups: dict[tuple[int, ...], str] = {}


def initialise(rank: int, world_size: int, store_address: tuple[str, int], timeout: float) -> None:
    """Join the ranks over a store at an IP address and port of rank 0's host, which needs no scheduler process."""
    wait = timedelta(seconds=timeout)
    store = distributed.TCPStore(*store_address, world_size, rank == 0, wait)
    _init_with_store(backend="mccl", timeout=wait, world_size=world_size, rank=rank, store=store, group_name="")
    _repair_default_groups()


def _repair_default_groups() -> None:
    """MindSpore binds the name of HCCL's world group as a default at import; point-to-point calls fail on it."""
    for module in ("mindspore.ops.function.comm_func", "mindspore.mint.distributed.distributed"):
        for function in ("get_cache_group_rank", "get_cache_group_size"):
            getattr(importlib.import_module(module), function).__defaults__ = (GlobalComm.WORLD_COMM_GROUP,)


def finalise() -> None:
    """Leave."""
    distributed.destroy_process_group()


def group_name(ranks: tuple[int, ...], world_size: int) -> str:
    """MindSpore's name of a group, which its members create together when they first use it."""
    if len(ranks) == world_size:
        return GlobalComm.WORLD_COMM_GROUP
    if ranks not in _groups:
        name = "ranks-" + "-".join(map(str, ranks))
        create_group(name, list(ranks))
        _groups[ranks] = name
    return _groups[ranks]


def all_reduce(x: np.ndarray, kind: Kind, op: str, group: str) -> np.ndarray:
    """The reduction over the group; 16-bit floats go as float32 and are rounded once, bools as int32."""
    if x.size == 0:
        return x
    wide = _wide(x, kind)
    distributed.all_reduce(wide, {"sum": "sum", "max": "max", "min": "min"}[op], group)
    return _narrow(wide, kind)


def broadcast(x: np.ndarray, kind: Kind, source: int, group: str) -> np.ndarray:
    """Rank `source`'s x."""
    if x.size == 0:
        return x
    carrier = _carrier(x, kind)
    distributed.broadcast(carrier, source, group)
    return _content(carrier, kind)


def all_gather(x: np.ndarray, kind: Kind, size: int, group: str) -> np.ndarray:
    """All x, one row a rank."""
    if x.size == 0:
        return np.empty((size, 0), x.dtype)
    carriers = [_carrier(np.zeros_like(x), kind) for _ in range(size)]
    distributed.all_gather(carriers, _carrier(x, kind), group)
    return np.stack([_content(carrier, kind) for carrier in carriers])


def exchange(parts: Sequence[np.ndarray], counts: Sequence[int], kind: Kind, ranks: Sequence[int], me: int) -> list:
    """Send `parts[i]` to, and receive `counts[i]` entries from, every rank of `ranks`; `me` is this one's index."""
    for i, part in enumerate(parts):
        if i != me:
            send(part, kind, ranks[i])
    return [parts[i] if i == me else recv(count, kind, ranks[i]) for i, count in enumerate(counts)]


def reduce_scatter(parts: Sequence[np.ndarray], kind: Kind, op: str, ranks: Sequence[int], me: int) -> np.ndarray:
    """The reduction, in group order, of everybody's `parts[me]`."""
    received = exchange(parts, [part.size for part in parts], kind, ranks, me)
    total = np.empty_like(received[0])
    reduce_into(total, received, op, kind)
    return total


def send(x: np.ndarray, kind: Kind, to: int) -> None:
    """Put x on the stream to `to`; returns when it has been copied."""
    if x.size:
        distributed.isend(_carrier(x, kind), to)


def recv(count: int, kind: Kind, source: int) -> np.ndarray:
    """Take the next `count` entries from the stream of `source`."""
    carrier = _carrier(np.zeros(count, kind.storage), kind)
    if count:
        distributed.irecv(carrier, source).wait()
    return _content(carrier, kind)


def _carrier(x: np.ndarray, kind: Kind) -> Tensor:
    """A new tensor of a type that mccl moves."""
    return ms.from_numpy(x.astype(np.int32)) if kind.name == "bool" else to_tensor(x.copy(), kind)


def _content(carrier: Tensor, kind: Kind) -> np.ndarray:
    return carrier.asnumpy().astype(np.bool_) if kind.name == "bool" else to_numpy(carrier, kind)


def _wide(x: np.ndarray, kind: Kind) -> Tensor:
    carrier = _carrier(x, kind)
    return carrier.astype(ms.float32) if kind.name in ("float16", "bfloat16") else carrier


def _narrow(wide: Tensor, kind: Kind) -> np.ndarray:
    return to_numpy(wide.astype(kind.type), kind)
