"""Doubles of HCCL beneath MindSpore's own Python: `mint.distributed` itself runs, with all its checks.

MindSpore's functions check names, types and groups in Python and then call a primitive `dist_comm_*_op`; those, and the
manager of groups behind them, are what is replaced here. Messages go through a connected backend of ours.

What is received stands in the output only after the handle's `wait()`, before that it is NaN: a read too early shows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any
from unittest.mock import patch

import mindspore
from mindspore import Tensor
from mindspore.communication import GlobalComm, _comm_helper
from mindspore.mint.distributed import distributed

from pynative.collectives import Backend, Group
from pynative.collectives.arrays import kind_of, to_numpy, writable
from pynative.memory.in_place import is_on_host
from tests.support.ascend.definitions import require
from tests.support.ascend.memory import uninitialised
from tests.support.ascend.streams import Message, Posted

WORLD = "hccl_world_group"
TYPES = (
    mindspore.float32, mindspore.float16, mindspore.bfloat16, mindspore.int32, mindspore.int64, mindspore.bool_,
)  # fmt: skip
"""Our types that HCCL carries and reduces on an Atlas A2 or A3 (HcclDataType); MindSpore passes a bool as int8.
bfloat16 has no product there, and earlier Atlas training products have no bfloat16."""

ISEND, IRECV = distributed.TYPE_ISEND, distributed.TYPE_IRECV


class Handle:
    """The handle that a primitive returns beside its output: `wait` puts the result in place."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        self._deliver: Callable[[], None] | None = deliver

    def wait(self) -> None:
        """Put the result into the output tensor."""
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver()


class Manager:
    """The double of MindSpore's CollectiveManager: the ranks of the job, and its groups by name."""

    def __init__(self, carrier: Backend) -> None:
        self.carrier = carrier
        self.groups: dict[str, Group] = {}

    def get_instance(self) -> "Manager":
        """Itself, as the class is a singleton."""
        return self

    def start(self, backend: str) -> None:
        """The double of `init`: makes the world's group."""
        require(backend == "hccl" and not self.groups, f"init({backend!r}), groups {list(self.groups)}")
        GlobalComm.INITED, GlobalComm.WORLD_COMM_GROUP = True, WORLD
        self.groups[WORLD] = self.carrier.group(range(self.carrier.world_size))

    def stop(self) -> None:
        """The double of destroying the world's group: forgets all groups."""
        GlobalComm.INITED = False
        self.groups.clear()

    def initialized(self) -> bool:
        """Whether `init` was called."""
        return bool(self.groups)

    def create_group(self, name: str, ranks: Sequence[int], options: object) -> bool:
        """Make a group, which all its members call; refuses a name that is taken or longer than HCCL's 127
        characters."""
        require(self.carrier.rank in ranks, f"create_group {name}: rank {self.carrier.rank} is not in {ranks}")
        require(list(ranks) == sorted(ranks) and len(ranks) > 1, f"create_group {name}: {ranks}")
        require(name not in self.groups and 0 < len(name) < 128, f"create_group: the name {name!r}")
        self.groups[name] = self.carrier.group(ranks)
        self.groups[name].barrier()
        return True

    def group(self, name: str) -> Group:
        """The group of that name, which exists."""
        require(name in self.groups, f"there is no group {name!r}")
        return self.groups[name]

    def get_rank_id(self, name: str) -> int:
        """This rank's index in the group of that name."""
        return self.group(name).rank

    def get_group_size(self, name: str) -> int:
        """The number of ranks of the group of that name."""
        return self.group(name).size

    def get_group_rank_from_world_rank(self, rank: int, name: str) -> int:
        """The index of a global rank in the group of that name."""
        return self.group(name).ranks.index(rank)

    def hccl_groups(self, ranks: Sequence[int]) -> None:
        """The double of ParallelCommManager's list of groups, which graph mode reads."""

    def set_hccl_groups(self, ranks: Sequence[int], name: str, exists: bool) -> None:
        """The double of ParallelCommManager's setter."""


def check(kernel: str, *tensors: Tensor) -> None:
    """Refuse tensors of several types, types that HCCL does not carry, tensors that are not contiguous or lie on the
    host; empty ones pass."""
    types = {x.dtype for x in tensors}
    require(len(types) == 1 and types <= set(TYPES), f"{kernel}: types {types}")
    require(all(x.is_contiguous() for x in tensors), f"{kernel}: a tensor is not contiguous")
    require(not any(map(is_on_host, tensors)), f"{kernel}: a tensor lies in host memory")


def fill(target: Tensor, result: Tensor) -> None:
    """Write a result into a tensor's own memory, in place."""
    kind = kind_of(target.dtype)
    writable(target, kind)[...] = to_numpy(result, kind).reshape(target.shape)


def copied(x: Tensor) -> Tensor:
    """A copy of x in new memory."""
    copy = uninitialised(x.shape, x.dtype)
    fill(copy, x)
    return copy


class Primitives:
    """Doubles of the primitives by MindSpore's names and with its arguments (gen_ops_prim, DistComm...); `posted` notes
    every call."""

    def __init__(self, manager: Manager) -> None:
        self._group = manager.group
        self.posted: list[Posted] = []

    def _post(self, group: str, *messages: Message) -> Group:
        """Note in `posted` what a group's stream is given; return the group."""
        ranks = self._group(group)
        self.posted.append(Posted(ranks.ranks, messages))
        return ranks

    def _launch(self, target: Tensor | None, work: Any, async_op: bool) -> tuple[Tensor | None, Handle]:
        """(output, handle): fill the output with NaN until the handle is waited for, at once unless async_op."""
        if target is not None:
            fill(target, uninitialised(target.shape, target.dtype))
        handle = Handle(lambda: fill(target, work.wait()) if target is not None else work.wait())
        if not async_op:
            handle.wait()
        return target, handle

    def all_reduce(self, input: Tensor, op_type: str, group: str, async_op: bool = True):
        """HcclAllReduce in place. The sum of bools as int8 would not be a bool."""
        check("all_reduce", input)
        require(op_type in ("sum", "max", "min"), f"all_reduce: {op_type}")
        require(input.dtype != mindspore.bool_ or op_type != "sum", "all_reduce: sum of bools, which are int8 to HCCL")
        work = self._post(group, ("all_reduce", -1)).all_reduce(copied(input), op_type, async_op=True)
        return self._launch(input, work, async_op)

    def all_gather_into_tensor(self, other: Tensor, input: Tensor, rank_size: int, group: str, async_op: bool = True):
        """HcclAllGather along the first axis."""
        check("all_gather", other, input)
        ranks = self._post(group, ("all_gather", -1))
        require(rank_size == ranks.size, f"all_gather: {rank_size} ranks")
        require(other.shape == (ranks.size * input.shape[0], *input.shape[1:]), f"all_gather: {input.shape}")
        return self._launch(other, ranks.all_gather(copied(input), async_op=True), async_op)

    def reduce_scatter_tensor(
        self, other: Tensor, input: Tensor, rank_size: int, op_type: str, group: str, async_op: bool = True
    ):
        """HcclReduceScatter along the first axis."""
        check("reduce_scatter", other, input)
        ranks = self._post(group, ("reduce_scatter", -1))
        require(rank_size == ranks.size and op_type in ("sum", "max", "min"), f"reduce_scatter: {rank_size}, {op_type}")
        require(input.shape == (ranks.size * other.shape[0], *other.shape[1:]), f"reduce_scatter: {input.shape}")
        require(input.dtype != mindspore.bool_ or op_type != "sum", "reduce_scatter: sum of bools, int8 to HCCL")
        return self._launch(other, ranks.reduce_scatter(copied(input), op=op_type, async_op=True), async_op)

    def broadcast(self, input: Tensor, src: int, rank_id: int, group: str, async_op: bool = True):
        """HcclBroadcast in place; src is an index in the group."""
        check("broadcast", input)
        ranks = self._post(group, ("broadcast", -1))
        require(rank_id == ranks.rank and 0 <= src < ranks.size, f"broadcast: rank {rank_id}, source {src}")
        return self._launch(input, ranks.broadcast(copied(input), src, async_op=True), async_op)

    def all_to_all_v_single(
        self, other: Tensor, input: Tensor, group: str, send_numel_list: Sequence[int], recv_numel_list: Sequence[int],
        rank_size: int, split_sizes_empty: bool, async_op: bool = True,
    ):  # fmt: skip
        """HcclAlltoAllV of a flat input; counts are elements, which fill both tensors."""
        check("all_to_all", other, input)
        ranks, counts = self._post(group, ("all_to_all", -1)), (send_numel_list, recv_numel_list)
        require(input.ndim == 1 and rank_size == ranks.size, f"all_to_all: input {input.shape}, {rank_size} ranks")
        require(all(len(each) == ranks.size and min(each) >= 0 for each in counts), f"all_to_all: counts {counts}")
        require((sum(counts[0]), sum(counts[1])) == (input.size, other.size), f"all_to_all: counts {counts}")
        work = ranks.all_to_all(copied(input), input_splits=counts[0], output_splits=counts[1], async_op=True)
        return self._launch(other, work, async_op)

    def isend(self, input: Tensor, dst: int, group: str, tag: int):
        """HcclSend to an index in the group."""
        require(tag == 0, f"isend: tag {tag}")
        return self._send(input, dst, self._post(group, ("send", dst)))

    def irecv(self, input: Tensor, tag: int, src: int, group: str):
        """HcclRecv from an index in the group."""
        require(tag == 0, f"irecv: tag {tag}")
        return self._receive(input, src, self._post(group, ("recv", src)))

    def _send(self, x: Tensor, peer: int, ranks: Group) -> tuple[Tensor | None, Handle]:
        check("isend", x)
        return self._launch(None, ranks.send(copied(x), peer, async_op=True), True)

    def _receive(self, x: Tensor, peer: int, ranks: Group) -> tuple[Tensor | None, Handle]:
        check("irecv", x)
        return self._launch(x, ranks.recv(x.shape, x.dtype, peer, async_op=True), True)

    def batch_isend_irecv(self, input: list[Tensor], group: str, op_types: list, remotes_ranks: list[int]):
        """HcclBatchSendRecv: messages with indices in the group; one handle for all."""
        require(len(input) == len(op_types) == len(remotes_ranks) > 0, "batch_isend_irecv: lists of different lengths")
        require(set(op_types) <= {ISEND, IRECV}, f"batch_isend_irecv: {op_types}")
        kinds = {ISEND: "send", IRECV: "recv"}
        messages = [(kinds[kind], peer) for kind, peer in zip(op_types, remotes_ranks, strict=True)]
        ranks = self._post(group, *messages)
        actions = {"send": self._send, "recv": self._receive}
        under_way = [actions[kind](x, peer, ranks)[1] for x, (kind, peer) in zip(input, messages, strict=True)]

        def wait_for_all() -> None:
            for handle in under_way:
                handle.wait()

        return input[0], Handle(wait_for_all)

    def barrier(self, group: str, async_op: bool = True):
        """HcclBarrier."""
        self._post(group, ("barrier", -1)).barrier()
        return Tensor(0, mindspore.int32), Handle(lambda: None)


NAMES = [name for name, value in vars(Primitives).items() if not name.startswith("_") and callable(value)]


def definition(name: str) -> list[str]:
    """The names of the arguments of MindSpore's primitive behind the double of that name."""
    return [*signature(type(getattr(distributed, f"dist_comm_{name}_op")).__call__).parameters]


@contextmanager
def communication(carrier: Backend) -> Iterator[list[Posted]]:
    """Within the context `mint.distributed` of this process is a job over `carrier`'s ranks; yields the calls that it
    posts to its streams."""
    manager = Manager(carrier)
    primitives = Primitives(manager)
    replaced = [
        (distributed, "init", manager.start),
        (distributed, "_finalize_collective", manager.stop),
        (_comm_helper, "CollectiveManager", manager),
        (_comm_helper, "ParallelCommManager", manager),
        (GlobalComm, "INITED", False),
        (GlobalComm, "WORLD_COMM_GROUP", WORLD),
        (distributed, "_GROUP_SIZE_CACHE", {}),
        (distributed, "_GROUP_RANK_CACHE", {}),
        *((distributed, f"dist_comm_{name}_op", getattr(primitives, name)) for name in NAMES),
    ]
    with ExitStack() as stack:
        for owner, name, double in replaced:
            stack.enter_context(patch.object(owner, name, double))
        for table in (_comm_helper._ExistingGroup.ITEMS, _comm_helper._ExistingGroup.GROUP_RANKS):
            stack.enter_context(patch.dict(table, clear=True))
        yield primitives.posted
