"""Collectives on an Ascend over MindSpore's HCCL. Not run on hardware.

Calls are not compared between ranks, and dead ranks are not named: HCCL's own time-out and checks apply. Asynchronous
work is HCCL's: `wait()` makes the stream wait, not the host.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from hashlib import sha256
from typing import Any, cast

from mindspore import Tensor, mint
from mindspore.communication import create_group
from mindspore.mint import distributed

from parallel_core.whereabouts import Standing
from pynative.collectives.arrays import Kind, kind_of
from pynative.collectives.engine import Engine, Handle, Lane, Steps
from pynative.collectives.interface import Backend, Group, Recv, Send
from pynative.collectives.ledger import Call, Label
from pynative.collectives.roll_call import OwnBoard, RollCall
from pynative.collectives.trace import Count, Trace


class Launched(Handle):
    """An operation that HCCL carries out: its result, and HCCL's handles to wait for before the result is read."""

    def __init__(self, result: Any, handles: Sequence[Any]):
        self._result = result
        self._handles = [handle for handle in handles if handle is not None]

    def wait(self) -> Any:
        """Make the stream wait for the transfer, and return the result."""
        for handle in self._handles:
            handle.wait()
        return self._result

    def done(self) -> bool:
        """True: HCCL does not say whether an operation is complete, and the stream keeps the order."""
        return True


class Launcher:
    """HCCL's counterpart of `engine.Engine`: an operation is launched by the time that `issue` returns, so nothing is
    outstanding here. last: the label of the operation that was issued last; None: there was none."""

    last: object = None
    """Label of the operation that was issued last; None: there was none."""

    def issue(self, lane: Lane, steps: Steps, label: object, count: Count) -> Launched:
        """Run an operation's generator to its end, and return its result, a Launched. Raises AssertionError if it waits
        for anything."""
        self.last = label
        start = time.perf_counter()
        try:
            next(steps)
        except StopIteration as stop:
            count.add_inside(start)
            return stop.value
        raise AssertionError(f"{label} waits for another rank, which HCCL does by itself")


def _at_issue(launch: Callable[..., Launched]) -> Callable[..., Steps]:
    """Steps that launch an operation when they are issued, so that the trace has the host's time for that."""

    @wraps(launch)
    def steps(*arguments: Any) -> Steps:
        return launch(*arguments)
        yield

    return steps


class HcclGroup(Group):
    """A group whose collectives HCCL carries out. Ranks in calls to MindSpore are global."""

    _native: str

    @_at_issue
    def _all_reduce(self, call: Call, x: Tensor, kind: Kind, op: str, out: Tensor | None) -> Launched:
        target = mint.empty(x.shape, dtype=x.dtype) if out is None else out
        _check_contiguous(target)
        if target is not x:
            target.copy_(x)
        handle = distributed.all_reduce(target, _reduction(op, kind), self._native, True)
        return Launched(target, [handle])

    @_at_issue
    def _all_gather(self, call: Call, x: Tensor, kind: Kind, axis: int, out: Tensor | None) -> Launched:
        moved = x.movedim(axis, 0).contiguous()
        target = mint.empty((moved.shape[0] * self.size, *moved.shape[1:]), dtype=x.dtype) if out is None else out
        _check_contiguous(target)
        handle = distributed.all_gather_into_tensor(target, moved, self._native, True)
        return self._moved_back(target, handle, axis)

    @_at_issue
    def _reduce_scatter(self, call: Call, x: Tensor, kind: Kind, axis: int, op: str, out: Tensor | None) -> Launched:
        moved = x.movedim(axis, 0).contiguous()
        target = mint.empty((moved.shape[0] // self.size, *moved.shape[1:]), dtype=x.dtype) if out is None else out
        _check_contiguous(target)
        handle = distributed.reduce_scatter_tensor(target, moved, _reduction(op, kind), self._native, True)
        return self._moved_back(target, handle, axis)

    @staticmethod
    def _moved_back(target: Tensor, handle: Any, axis: int) -> Launched:
        """The operation whose result is `target` with its first axis moved to `axis`: HCCL joins and cuts along the
        first axis alone. handle: HCCL's, waited for before the axis is moved."""
        if not axis:
            return Launched(target, [handle])
        handle.wait()
        return Launched(target.movedim(0, axis).contiguous(), [])

    @_at_issue
    def _broadcast(self, call: Call, x: Tensor, kind: Kind, source: int) -> Launched:
        target = x.contiguous() if source == self.rank else mint.empty(x.shape, dtype=x.dtype)
        return Launched(target, [distributed.broadcast(target, self.ranks[source], self._native, True)])

    @_at_issue
    def _all_to_all(self, call: Call, x: Tensor, kind: Kind) -> Launched:
        sent, expected = (list(rows) for rows in call.rows)
        target = mint.empty((sum(expected), *x.shape[1:]), dtype=x.dtype)
        handle = distributed.all_to_all_single(target, x.contiguous(), expected, sent, self._native, True)
        return Launched(target, [handle])

    @_at_issue
    def _send(self, call: Call, x: Tensor, kind: Kind, to: int) -> Launched:
        return Launched(None, [distributed.isend(x.contiguous(), self.ranks[to], self._native)])

    @_at_issue
    def _recv(self, call: Call, shape: tuple[int, ...], kind: Kind, source: int) -> Launched:
        target = mint.empty(shape, dtype=kind.type)
        return Launched(target, [distributed.irecv(target, self.ranks[source], self._native)])

    def batch_send_recv(self, messages: Sequence[Send | Recv]) -> list[Handle]:
        """Launch all messages as one batch, no batch for no messages; a Handle for each, in their order. Launched one
        by one on a stream, the sends of two ranks that both send first could wait for each other forever."""
        operations = [self._operation(message) for message in messages]
        handles = distributed.batch_isend_irecv(operations) if operations else []
        return [
            self._posted(message, operation.tensor, handles)
            for message, operation in zip(messages, operations, strict=True)
        ]

    def _operation(self, message: Send | Recv) -> distributed.P2POp:
        if isinstance(message, Send):
            self._check_peer("send", message.to)
            return distributed.P2POp("isend", message.x.contiguous(), self.ranks[message.to], self._native)
        self._check_peer("recv", message.source)
        target = mint.empty(tuple(message.shape), dtype=message.dtype)
        return distributed.P2POp("irecv", target, self.ranks[message.source], self._native)

    def _posted(self, message: Send | Recv, target: Tensor, handles: Sequence[Any]) -> Handle:
        """The handle of one message of a batch, counted in the trace as `send` and `recv` count theirs."""
        kind, sends = kind_of(target.dtype), isinstance(message, Send)
        size = target.size * kind.storage.itemsize if sends else 0
        steps = _at_issue(lambda: Launched(None if sends else target, handles))()
        return self._run("send" if sends else "recv", self._call("message", ""), steps, True, size)

    @_at_issue
    def _barrier(self, call: Call) -> Launched:
        distributed.barrier(self._native)
        return Launched(None, [])

    def _send_lane(self, to: int) -> Lane:
        return self._lane

    def _recv_lane(self, source: int) -> Lane:
        return self._lane


def _check_contiguous(target: Tensor) -> None:
    if not target.is_contiguous():
        raise ValueError("out is a view of another tensor that is not contiguous; pass one that is")


def _reduction(op: str, kind: Kind) -> str:
    """HCCL's name of a reduction; a "sum" (logical or) of bools is "max", because bools travel as int8."""
    return "max" if kind.name == "bool" and op == "sum" else op


class HcclBackend(Backend):
    """The backend of an Ascend job; msrun's scheduler process stays inside the constructor until the job ends."""

    def __init__(self, timeout_minutes: float):
        distributed.init_process_group("hccl", timeout=timedelta(minutes=timeout_minutes))
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        self.trace = Trace()
        self._launcher = Launcher()
        self._roll_call = RollCall(OwnBoard(self.rank))
        self._groups: dict[tuple[int, ...], HcclGroup] = {}
        self.world = self.group(range(self.world_size), "world")

    def group(self, ranks: Sequence[int], name: str = "") -> Group:
        ranks = tuple(ranks)
        if ranks not in self._groups:
            group = HcclGroup(cast(Engine, self._launcher), self.trace, self.rank, ranks, name)
            group._native = _native_name(ranks, self.world_size)
            self._groups[ranks] = group
        return self._groups[ranks]

    def prepare(self, groups: Mapping[str, Sequence[int]]) -> None:
        for kind, ranks in groups.items():
            self.group(ranks, kind)

    def progress(self) -> None:
        """Do nothing: HCCL moves data by itself."""

    def standing(self) -> tuple[bool, tuple[Standing, ...]]:
        """(False, a tuple of the operation that was issued last, empty if there was none): HCCL does not say which
        operations are complete."""
        label = self._launcher.last
        return False, (label.standing(self.rank, ()),) if isinstance(label, Label) else ()

    def seconds_waited(self) -> float:
        return 0.0

    @property
    def roll_call(self) -> RollCall:
        return self._roll_call

    def fail(self, error: BaseException) -> None:
        """Do nothing: HCCL has no way to tell the other ranks; msrun ends them."""

    def close(self) -> None:
        self._roll_call.close()
        distributed.destroy_process_group()


def _native_name(ranks: tuple[int, ...], world_size: int) -> str:
    """HCCL's name (less than 128 bytes) of the group of these global ranks, which is created here unless it is the
    world or has one rank. All its members call this together."""
    if len(ranks) == world_size:
        return "hccl_world_group"
    name = "ranks-" + sha256(repr(ranks).encode()).hexdigest()[:32]
    if len(ranks) > 1:
        create_group(name, list(ranks))
    return name
