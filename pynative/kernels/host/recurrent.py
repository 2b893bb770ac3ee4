"""Linear attention on the host: a recurrence in chunks of tokens.

A task is value heads that share a key head, in one entry of the batch, with at most WIDTH columns of states in all, or
a single one; it goes through the sequence a segment at a time. Kept for the backward are the inputs and the state
before each segment.
In the operator's arrays m is the number of key heads and n that of value heads; in a segment's, letters are those of
`recurrence_chunks`.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.recurrence import LENGTH_EPSILON, SEGMENT, RecurrenceForm, segments
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import array_or_none
from pynative.kernels.host.recurrence_chunks import Inputs, Segment, chunk_of
from pynative.kernels.host.recurrence_gradients import SegmentGradients
from pynative.kernels.host.threads import run, spans
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert
from pynative.tape.autograd import Function

WIDTH = 512
"""The most columns of a task's states (r e), unless a single head has more."""


class _Unit:
    """Rows times a factor and, with `form.unit`, divided by their lengths (square root of the sum of squares), written
    into `out`; keeps what each row was multiplied by, for the gradient."""

    def __init__(self, rows: Array, form: RecurrenceForm, factor: float, out: Array) -> None:
        self.out, self.factor, self.is_unit = out, np.float32(factor), form.unit
        self.scale: Array | np.float32 = self.factor
        if form.unit:
            squares = np.einsum("...d,...d->...", rows, rows)[..., None]
            self.scale = self.factor / np.sqrt(squares + np.float32(LENGTH_EPSILON))
        np.multiply(rows, self.scale, out=out)

    def gradient(self, dout: Array) -> Array:
        """The gradient of the rows, from that of `out`."""
        if self.is_unit:
            along = np.einsum("...d,...d->...", dout, self.out)[..., None]
            dout = dout - self.out * (along / np.square(self.factor))
        return dout * self.scale


class _Arrays(NamedTuple):
    """The inputs of the operator, or their gradients: the arrays of all heads."""

    q: Array
    k: Array
    v: Array
    log_decay: Array
    rate: Array | None

    @property
    def blocks(self) -> int:
        """The number of equal blocks into which the value heads of each key head are cut."""
        shared, width = self.v.shape[2] // self.q.shape[2], self.v.shape[3]
        fitting = (count for count in range(shared, 0, -1) if shared % count == 0 and count * width <= WIDTH)
        return shared // next(fitting, 1)

    @property
    def tasks(self) -> list["_Task"]:
        """The tasks: one for every block of value heads of every key head and entry of the batch."""
        _, batch, keys, _ = self.q.shape
        return [_Task(self, *place) for place in product(range(batch), range(keys), range(self.blocks))]


class _Task:
    """One block of value heads that share a key head, in one entry of the batch."""

    def __init__(self, arrays: _Arrays, entry: int, key: int, block: int) -> None:
        self.arrays, self.entry, self.key, self.block = arrays, entry, key, block
        count = arrays.v.shape[2] // (arrays.q.shape[2] * arrays.blocks)
        first = (key * arrays.blocks + block) * count
        self.heads, self.count = slice(first, first + count), count
        self.size = chunk_of(len(arrays.q))

    def shared(self, x: Array, span: tuple[int, int]) -> Array:
        """A view [tokens, d] of x [s, b, m, d]: the task's key head at the tokens of `span`."""
        return x[slice(*span), self.entry, self.key]

    def own(self, x: Array, span: tuple[int, int]) -> Array:
        """A view [tokens, r, ...] of x [s, b, n, ...]: the task's value heads at the tokens of `span`."""
        return x[slice(*span), self.entry, self.heads]

    def segment(self, span: tuple[int, int], form: RecurrenceForm, length: int) -> tuple[Segment, _Unit, _Unit]:
        """(the segment of the tokens of `span`; its queries, times form.scale, and its keys, both as `_Unit` and with
        form.unit divided by their lengths). Tokens from number `length` of the sequence on leave the state as it
        is."""
        arrays = self.arrays
        chunks = -(-(span[1] - span[0]) // self.size)
        qk = np.empty((chunks, 2, self.size, arrays.q.shape[3]), np.float32)
        q = _Unit(self.chunked(self.shared(arrays.q, span)), form, form.scale, qk[:, 0])
        k = _Unit(self.chunked(self.shared(arrays.k, span)), form, 1.0, qk[:, 1])
        alive = (np.arange(*span) < length)[:, None]
        decay = self.own(arrays.log_decay, span) * alive
        rate = alive * (np.ones_like(decay) if arrays.rate is None else self.own(arrays.rate, span))
        inputs = Inputs(qk, self.chunked(self.own(arrays.v, span)), self.chunked(decay), self.chunked(rate))
        return Segment(inputs, form.delta), q, k

    def memory(self, rows: Array) -> Array:
        """Float32 memory [m, C, ...] for results that belong into rows [tokens, ...]: the rows' own where possible."""
        chunks = -(-len(rows) // self.size)
        shape = chunks, self.size, *rows.shape[1:]
        is_own = rows.dtype == np.float32 and len(rows) == chunks * self.size
        return rows.reshape(shape) if is_own else np.empty(shape, np.float32)

    def chunked(self, rows: Array) -> Array:
        """Rows [tokens, ...] as float32 chunks [m, C, ...], zeros behind the last row. A copy always: rows are read
        several times, and those that lie a power of two apart share few places of the cache."""
        chunks = -(-len(rows) // self.size)
        whole = np.empty((chunks * self.size, *rows.shape[1:]), np.float32)
        convert(rows, whole[: len(rows)])
        whole[len(rows) :] = 0
        return whole.reshape(chunks, self.size, *rows.shape[1:])

    def put(self, values: Array, out: Array) -> None:
        """Write values [m, C, ...] into rows `out` [tokens, ...], unless `memory` gave the rows' own."""
        if not np.may_share_memory(values, out):
            convert(values.reshape(-1, *values.shape[2:])[: len(out)], out)


def _forward(
    arrays: _Arrays, form: RecurrenceForm, first: Array | None, lengths: Array | None, keeps: bool
) -> tuple[Array, Array, Array]:
    """(output, last states [b, n, d, e], and, if `keeps`, the states before segments [tasks, segments, d, r, e]).
    first: states to begin with, None: zeros; lengths: tokens of each entry that count."""
    tokens, batch, heads, width = arrays.v.shape
    tasks = arrays.tasks
    out = np.empty(arrays.v.shape, arrays.v.dtype)
    last = np.empty((batch, heads, arrays.q.shape[-1], width), np.float32)
    kept = len(tasks), segments(tokens) if keeps else 0, arrays.q.shape[-1], tasks[0].count, width
    starts = np.empty(kept, np.float32)

    def work(number: int, task: _Task) -> None:
        state = np.zeros(kept[2:], np.float32)
        if first is not None:
            state[:] = first[task.entry, task.heads].swapaxes(0, 1)
        for place, span in enumerate(spans(tokens, SEGMENT)):
            if keeps:
                starts[number, place] = state
            segment, _, _ = task.segment(span, form, tokens if lengths is None else int(lengths[task.entry]))
            rows = task.own(out, span)
            result = task.memory(rows)
            state = segment.forward(state, result)
            task.put(result, rows)
        last[task.entry, task.heads] = state.swapaxes(0, 1)

    run(work, [*enumerate(tasks)])
    return out, last, starts


def _backward(arrays: _Arrays, form: RecurrenceForm, starts: Array, dout: Array) -> _Arrays:
    shares = arrays.blocks
    dq, dk = (np.empty((shares, *x.shape), x.dtype if shares == 1 else np.float32) for x in arrays[:2])
    dv, ddecay = map(np.empty_like, arrays[2:4])
    drate = np.empty_like(ddecay)

    def work(number: int, task: _Task) -> None:
        dstate = np.zeros_like(starts[number, 0])
        for place, span in reversed([*enumerate(spans(len(dout), SEGMENT))]):
            segment, q, k = task.segment(span, form, len(dout))
            segment.forward(starts[number, place], None)
            found = SegmentGradients(segment, task.chunked(task.own(dout, span)), dstate)
            dstate = found.dstate
            outs = [task.own(x, span) for x in (dv, ddecay, drate)]
            gradients = Inputs(np.empty_like(segment.inputs.qk), *map(task.memory, outs))
            found.fill(gradients)
            for gradient, out in zip(gradients[1:], outs, strict=True):
                task.put(gradient, out)
            for part, (unit, out) in enumerate(((q, dq), (k, dk))):
                task.put(unit.gradient(gradients.qk[:, part]), task.shared(out[task.block], span))

    run(work, [*enumerate(arrays.tasks)])
    return _Arrays(_sum(dq, arrays.q), _sum(dk, arrays.k), dv, ddecay, None if arrays.rate is None else drate)


def _sum(parts: Array, like: Array) -> Array:
    """The sum over the first axis of float32 parts [parts, ...] in the type of `like`; a single part itself."""
    if len(parts) == 1:
        return parts[0]
    total = np.empty_like(like)
    convert(parts.sum(0), total)
    return total


def _arrays(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None) -> _Arrays:
    return _Arrays(array_of(q), array_of(k), array_of(v), array_of(log_decay), array_or_none(rate))


class _LinearRecurrence(Function):
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm
    ) -> Tensor:
        ctx.form = form
        keeps = any(ctx.inputs_need_gradients)
        out, _, starts = _forward(_arrays(q, k, v, log_decay, rate), form, None, None, keeps)
        ctx.save_for_backward(q, k, v, log_decay, *(() if rate is None else (rate,)), from_numpy(starts))
        return from_numpy(out)

    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, log_decay, *rate, starts = ctx.saved_tensors
        arrays = _arrays(q, k, v, log_decay, rate[0] if rate else None)
        gradients = _backward(arrays, ctx.form, array_of(starts), array_of(dout))
        return *(None if x is None else from_numpy(x) for x in gradients), None


def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm
) -> Tensor:
    return _LinearRecurrence.apply(q, k, v, log_decay, rate, form)


def continued_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm, state: Tensor,
    lengths: Array | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, last, _ = _forward(_arrays(q, k, v, log_decay, rate), form, array_of(state), lengths, False)
    return from_numpy(out), from_numpy(last)
