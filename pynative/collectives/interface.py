"""The collectives' interface: arguments checked, the call recorded, a group of one answered at once.

A backend adds the transport: for each operation a generator (`engine.Steps`) that yields the targets it waits for and
returns the result.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor

from parallel_core.whereabouts import Standing
from pynative.collectives.arrays import REDUCTIONS, Kind, copied, kind_of
from pynative.collectives.engine import Completed, Engine, Handle, Lane, Steps
from pynative.collectives.ledger import Call, Label, call_site
from pynative.collectives.roll_call import RollCall
from pynative.collectives.trace import TRAFFIC, Trace


@dataclass(frozen=True)
class Send:
    """A message of `batch_send_recv`: the tensor `x` to rank `to` (index in the group)."""

    x: Tensor
    to: int


@dataclass(frozen=True)
class Recv:
    """A message of `batch_send_recv`: a tensor of this shape and type from rank `source` (index in the group)."""

    shape: Sequence[int]
    dtype: object
    source: int


class Backend(ABC):
    """The connection of this process, rank `rank` of `world_size`, to the other ranks of its job."""

    rank: int
    world_size: int
    world: "Group"
    trace: Trace

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host; all ranks, for a backend that does not know."""
        return self.world_size

    @abstractmethod
    def group(self, ranks: Sequence[int], name: str = "") -> "Group":
        """The group of these global ranks; the same object for the same ranks. `name`, as first given, is for messages
        and the trace. On CPUs members may make their groups in any order, and ranks that do not ascend or lack this one
        raise ValueError; with HCCL all members of a group make it together (`prepare`)."""

    @abstractmethod
    def prepare(self, groups: Mapping[str, Sequence[int]]) -> None:
        """Make this rank's groups where the members of a group have to make it together (HCCL). groups: global ranks by
        kind of group, the kinds in one order on all ranks."""

    @abstractmethod
    def progress(self) -> None:
        """Move asynchronous operations on without waiting; a rank calls this now and then while it computes."""

    @abstractmethod
    def standing(self) -> tuple[bool, tuple[Standing, ...]]:
        """(whether this rank waits in an operation; its unfinished operations: of each queue the first, beginning with
        the queue that it waits for). With HCCL (False, the last operation): more is not known."""

    @abstractmethod
    def seconds_waited(self) -> float:
        """Seconds so far spent waiting for other ranks, without anything to move; 0 where the backend does not know."""

    @property
    @abstractmethod
    def roll_call(self) -> RollCall:
        """This rank's part in roll calls, in which ranks say where they stand."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell the other ranks, unless this one's operations have stopped before, that it stops because of `error`;
        their waits then raise PeerFailed, or such an error as `error` if it is a CollectiveError. HCCL cannot tell."""

    @abstractmethod
    def close(self) -> None:
        """Leave the job together with the other ranks; after an operation failed, without them. On CPUs raises
        CollectiveMismatch, on all ranks, if a message was not received or an operation is unfinished."""


class Group(ABC):
    """A group of ranks of the job. `ranks` are global, `rank` is this rank's index among them, `size` their number.

    Operations take and return MindSpore tensors of float32, float16, bfloat16, int32, int64 or bool. With
    `async_op=True` they return a Handle, and the input must stay unchanged until its `wait()`. A group of one returns
    the input itself, or `out`. `about` names x in messages, the same on all ranks. Operations raise ValueError for
    arguments that do not fit, all but `batch_send_recv` before anything is sent. On CPUs reductions run in group order,
    16-bit floats in float32, so all ranks get equal bits, and operations raise CollectiveMismatch if ranks call
    different things, PeerLost if one that is needed is gone, PeerLate if it is late. HCCL has its own rules for these.
    """

    def __init__(self, engine: Engine, trace: Trace, world_rank: int, ranks: Sequence[int], name: str):
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(world_rank)
        self.size = len(self.ranks)
        self.name = name or "-".join(map(str, ranks))
        self._engine = engine
        self.trace = trace
        self._lane = Lane()

    def all_reduce(
        self, x: Tensor, op: str = "sum", *, out: Tensor | None = None, async_op: bool = False, about: str = ""
    ) -> Any:
        """The sum, max or min of the ranks' x (for bools, sum is or); written into `out` if given, which may be x."""
        self._check_reduction(op)
        kind = kind_of(x.dtype)
        if out is not None and out is not x and _typed(out) != _typed(x):
            raise ValueError(f"all_reduce: out is {_typed(out)}, x is {_typed(x)}; they must be alike")
        if self.size == 1:
            return self._alone(x if out is None or out is x else copied(x, out, kind), async_op)
        call = self._call("all_reduce", f"op={op} {_described(x.shape, kind)}", about)
        return self._run("all_reduce", call, self._all_reduce(call, x, kind, op, out), async_op, _bytes(x, kind))

    def all_gather(
        self, x: Tensor, axis: int = 0, *, out: Tensor | None = None, async_op: bool = False, about: str = ""
    ) -> Any:
        """The ranks' x concatenated along `axis` in group order; written into `out` if given (then axis is 0), of which
        x may be a view: this rank's own place there."""
        axis = self._check_axis("all_gather", x, axis)
        kind = kind_of(x.dtype)
        shape = (x.shape[0] * self.size, *x.shape[1:]) if axis == 0 else ()
        self._check_out("all_gather", x, axis, shape, out)
        if self.size == 1:
            return self._alone(x if out is None else copied(x, out, kind), async_op)
        call = self._call("all_gather", f"axis={axis} {_described(x.shape, kind)}", about)
        return self._run("all_gather", call, self._all_gather(call, x, kind, axis, out), async_op, _bytes(x, kind))

    def reduce_scatter(
        self,
        x: Tensor,
        axis: int = 0,
        op: str = "sum",
        *,
        out: Tensor | None = None,
        async_op: bool = False,
        about: str = "",
    ) -> Any:
        """This rank's part, of `size` equal parts along `axis`, of the reduction of the ranks' x; written into `out` if
        given (then axis is 0), which may be the part's own place in x."""
        self._check_reduction(op)
        axis = self._check_axis("reduce_scatter", x, axis)
        self._check_divides("reduce_scatter", x, axis)
        kind = kind_of(x.dtype)
        shape = (x.shape[0] // self.size, *x.shape[1:])
        self._check_out("reduce_scatter", x, axis, shape, out)
        if self.size == 1:
            return self._alone(x if out is None else copied(x, out, kind), async_op)
        call = self._call("reduce_scatter", f"op={op} axis={axis} {_described(x.shape, kind)}", about)
        steps = self._reduce_scatter(call, x, kind, axis, op, out)
        return self._run("reduce_scatter", call, steps, async_op, _bytes(x, kind))

    def broadcast(self, x: Tensor, source: int, *, async_op: bool = False) -> Any:
        """The x of rank `source` (index in the group); the x of the others only gives shape and type."""
        self._check_rank("broadcast", source)
        if self.size == 1:
            return self._alone(x, async_op)
        kind = kind_of(x.dtype)
        call = self._call("broadcast", f"source={source} {_described(x.shape, kind)}")
        steps = self._broadcast(call, x, kind, source)
        return self._run("broadcast", call, steps, async_op, _bytes(x, kind), source == self.rank)

    def all_to_all(
        self,
        x: Tensor,
        *,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send rows of x (axis 0) to every rank; return the rows that came from the ranks, in group order.

        `input_splits[i]` rows go to index i of the group, `output_splits[i]` come from it; give both, or neither for
        equal parts.
        """
        rows = self._check_splits(x, input_splits, output_splits)
        if self.size == 1:
            return self._alone(x, async_op)
        kind = kind_of(x.dtype)
        call = self._call("all_to_all", f"rows of {_described(x.shape[1:], kind)}")
        call.rows = rows
        sent = _bytes(x, kind) * (sum(rows[0]) - rows[0][self.rank]) // max(1, sum(rows[0]))
        return self._run("all_to_all", call, self._all_to_all(call, x, kind), async_op, sent)

    def send(self, x: Tensor, to: int, *, async_op: bool = False) -> Any:
        """Send x to rank `to` (index in the group). Once it (with async_op the `wait`) returns, x may change."""
        self._check_peer("send", to)
        kind = kind_of(x.dtype)
        call = self._call("message", _described(x.shape, kind))
        lane = self._send_lane(to)
        return self._run("send", call, self._send(call, x, kind, to), async_op, _bytes(x, kind), lane=lane)

    def recv(self, shape: Sequence[int], dtype: object, source: int, *, async_op: bool = False) -> Any:
        """The next tensor that rank `source` (index in the group) sends in this group; of this shape and type."""
        self._check_peer("recv", source)
        kind = kind_of(dtype)
        call = self._call("message", _described(shape, kind))
        lane = self._recv_lane(source)
        return self._run("recv", call, self._recv(call, tuple(shape), kind, source), async_op, 0, lane=lane)

    def batch_send_recv(self, messages: Sequence[Send | Recv]) -> list[Handle]:
        """Post all messages; a Handle for each, in their order. They can be waited for in any order."""
        return [
            self.send(message.x, message.to, async_op=True)
            if isinstance(message, Send)
            else self.recv(message.shape, message.dtype, message.source, async_op=True)
            for message in messages
        ]

    def barrier(self) -> None:
        """Block until all ranks of the group have called this."""
        if self.size > 1:
            call = self._call("barrier", "")
            self._run("barrier", call, self._barrier(call), False, 0)

    # Transport: one generator for each operation.

    @abstractmethod
    def _all_reduce(self, call: Call, x: Tensor, kind: Kind, op: str, out: Tensor | None) -> Steps: ...

    @abstractmethod
    def _all_gather(self, call: Call, x: Tensor, kind: Kind, axis: int, out: Tensor | None) -> Steps: ...

    @abstractmethod
    def _reduce_scatter(self, call: Call, x: Tensor, kind: Kind, axis: int, op: str, out: Tensor | None) -> Steps: ...

    @abstractmethod
    def _broadcast(self, call: Call, x: Tensor, kind: Kind, source: int) -> Steps: ...

    @abstractmethod
    def _all_to_all(self, call: Call, x: Tensor, kind: Kind) -> Steps: ...

    @abstractmethod
    def _send(self, call: Call, x: Tensor, kind: Kind, to: int) -> Steps: ...

    @abstractmethod
    def _recv(self, call: Call, shape: tuple[int, ...], kind: Kind, source: int) -> Steps: ...

    @abstractmethod
    def _barrier(self, call: Call) -> Steps: ...

    @abstractmethod
    def _send_lane(self, to: int) -> Lane:
        """The lane of this rank's sends to group index `to`, which keep their order."""

    @abstractmethod
    def _recv_lane(self, source: int) -> Lane:
        """The lane of this rank's receives from group index `source`, which keep their order."""

    # Shared parts.

    def _call(self, operation: str, details: str, about: str = "") -> Call:
        return Call(f"{operation} {details}{about and ' of '}{about}", call_site())

    def _run(
        self,
        operation: str,
        call: Call,
        steps: Steps,
        async_op: bool,
        size: int,
        is_source: bool = False,
        lane: Lane | None = None,
    ) -> Any:
        lane = lane or self._lane
        lane.calls += 1
        call.number = lane.calls
        count = self.trace.of(self.name, operation)
        count.calls += 1
        count.bytes += TRAFFIC[operation](size, self.size, is_source)
        label = Label(operation, self.name, self.ranks, call)
        work = self._engine.issue(lane, steps, label, count)
        return work if async_op else work.wait()

    def _alone(self, x: Tensor, async_op: bool) -> Any:
        return Completed(x) if async_op else x

    def _check_reduction(self, op: str) -> None:
        if op not in REDUCTIONS:
            raise ValueError(f"op={op!r}: a reduction is one of {', '.join(REDUCTIONS)}")

    def _check_axis(self, operation: str, x: Tensor, axis: int) -> int:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"{operation}: axis={axis}, but x is {_typed(x)}")
        return int(axis % x.ndim)

    def _check_out(self, operation: str, x: Tensor, axis: int, shape: tuple[int, ...], out: Tensor | None) -> None:
        if out is None:
            return
        if axis:
            raise ValueError(f"{operation}: out is written along the first axis, not axis={axis}; leave one out")
        if (tuple(out.shape), out.dtype) != (shape, x.dtype):
            needed = _described(shape, kind_of(x.dtype))
            raise ValueError(f"{operation}: out is {_typed(out)}; of {_typed(x)} it must be {needed}")

    def _check_divides(self, operation: str, x: Tensor, axis: int) -> None:
        if x.shape[axis] % self.size:
            raise ValueError(f"{operation}: axis {axis} of {_typed(x)} does not divide by the {self.size} ranks")

    def _check_rank(self, operation: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{operation}: {rank} is not an index of group {self.name} of {self.size} ranks")

    def _check_peer(self, operation: str, rank: int) -> None:
        self._check_rank(operation, rank)
        if rank == self.rank:
            raise ValueError(f"{operation}: rank {rank} of group {self.name} is this rank itself")

    def _check_splits(
        self, x: Tensor, input_splits: Sequence[int] | None, output_splits: Sequence[int] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if x.ndim == 0:
            raise ValueError("all_to_all: x has no rows, it is a single number")
        if (input_splits is None) != (output_splits is None):
            raise ValueError("all_to_all: give both input_splits and output_splits, or neither for equal parts")
        if input_splits is None or output_splits is None:
            self._check_divides("all_to_all", x, 0)
            input_splits = output_splits = (x.shape[0] // self.size,) * self.size
        rows = tuple(map(int, input_splits)), tuple(map(int, output_splits))
        if any(len(splits) != self.size or min(splits) < 0 for splits in rows) or sum(rows[0]) != x.shape[0]:
            raise ValueError(
                f"all_to_all: input_splits={rows[0]}, output_splits={rows[1]}: each needs {self.size} counts, none "
                f"negative, and the input's must add up to the {x.shape[0]} rows of x"
            )
        if rows[0][self.rank] != rows[1][self.rank]:
            raise ValueError(f"all_to_all: this rank keeps {rows[0][self.rank]} rows but expects {rows[1][self.rank]}")
        return rows


def _described(shape: Sequence[int], kind: Kind) -> str:
    return f"{kind.name}{list(shape)}"


def _typed(x: Tensor) -> str:
    return _described(x.shape, kind_of(x.dtype))


def _bytes(x: Tensor, kind: Kind) -> int:
    return int(x.size) * kind.storage.itemsize
