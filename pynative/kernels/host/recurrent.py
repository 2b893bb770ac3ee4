"""Linear attention on the host: a recurrence in chunks of tokens.

A task is a key head of an entry of the batch with its value heads, which goes through the sequence a
segment at a time, so that what it works on stays in the cache whatever the length. Kept are the inputs and the states
between segments.
"""

from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.recurrence import LENGTH_EPSILON, SEGMENT, RecurrenceForm, segments
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import array_or_none
from pynative.kernels.host.recurrence_chunks import Inputs, Segment, chunk_of
from pynative.kernels.host.threads import run, spans
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert
from pynative.tape.autograd import Function


class _Unit(NamedTuple):
    """Rows divided by their lengths, times a factor."""

    rows: Array
    inverse: Array
    """[..., 1], 1 / length."""
    factor: np.float32

    @classmethod
    def of(cls, rows: Array, form: RecurrenceForm, factor: float) -> "_Unit":
        if not form.unit:
            return cls(rows, np.ones((), np.float32), np.float32(factor))
        squares = np.einsum("...d,...d->...", rows, rows)[..., None]
        inverse = 1 / np.sqrt(squares + np.float32(LENGTH_EPSILON))
        return cls(rows * inverse, inverse, np.float32(factor))

    @property
    def values(self) -> Array:
        return self.rows if self.factor == 1 else self.rows * self.factor

    def gradient(self, dvalues: Array, form: RecurrenceForm) -> Array:
        """The gradient of the rows before."""
        if self.factor != 1:
            dvalues = dvalues * self.factor
        if not form.unit:
            return dvalues
        return self.inverse * (dvalues - self.rows * np.einsum("...d,...d->...", dvalues, self.rows)[..., None])


class _Arrays(NamedTuple):
    """Inputs of the operator, or their gradients."""

    q: Array
    k: Array
    v: Array
    log_decay: Array
    rate: Array | None

    @property
    def tasks(self) -> list[tuple[int, int]]:
        """(entry of the batch, key head)."""
        return [(entry, head) for entry in range(self.q.shape[1]) for head in range(self.q.shape[2])]

    @property
    def shared(self) -> int:
        """Value heads of a key head, r."""
        return self.v.shape[2] // self.q.shape[2]


class _Task:
    """A key head of an entry of the batch."""

    def __init__(self, arrays: _Arrays, entry: int, head: int) -> None:
        self.arrays, self.entry, self.head = arrays, entry, head
        self.heads = slice(head * arrays.shared, (head + 1) * arrays.shared)
        self.size = chunk_of(len(arrays.q))

    def segment(self, span: tuple[int, int], form: RecurrenceForm, length: int) -> tuple[Segment, _Unit, _Unit]:
        """Tokens of a span, and its queries and keys. Those from `length` on leave the state as it is."""
        arrays, entry, (start, stop) = self.arrays, self.entry, span
        chunks = -(-(stop - start) // self.size)
        q = _Unit.of(self.chunked(arrays.q[start:stop, entry, self.head], chunks), form, form.scale)
        k = _Unit.of(self.chunked(arrays.k[start:stop, entry, self.head], chunks), form, 1.0)
        v = self.chunked(arrays.v[start:stop, entry, self.heads], chunks)
        alive = np.arange(start, stop) < length
        decay = arrays.log_decay[start:stop, entry, self.heads] * alive[:, None]
        rate = np.ones_like(decay) if arrays.rate is None else arrays.rate[start:stop, entry, self.heads]
        rate = rate * alive[:, None]
        inputs = Inputs(q.values, k.values, v, self.chunked(decay, chunks), self.chunked(rate, chunks))
        return Segment(inputs, form.delta), q, k

    def chunked(self, rows: Array, chunks: int) -> Array:
        """[tokens, ...] -> float32 [m, C, ...], zeros behind the last."""
        whole = np.zeros((chunks * self.size, *rows.shape[1:]), np.float32)
        convert(rows, whole[: len(rows)])
        return whole.reshape(chunks, self.size, *rows.shape[1:])

    def put(self, values: Array, out: Array, span: tuple[int, int]) -> None:
        """[m, C, r, ...] to where these value heads are in [s, b, n, ...]."""
        start, stop = span
        rows = values.reshape(-1, *values.shape[2:])[: stop - start]
        convert(rows, out[start:stop, self.entry, self.heads])

    def put_shared(self, values: Array, out: Array, span: tuple[int, int]) -> None:
        """[m, C, d] to where the key head is in [s, b, m, d]."""
        start, stop = span
        convert(values.reshape(-1, values.shape[-1])[: stop - start], out[start:stop, self.entry, self.head])


def _forward(
    arrays: _Arrays, form: RecurrenceForm, first: Array | None, lengths: Array | None, keeps: bool
) -> tuple[Array, Array, Array]:
    """The output, the last states [b, n, d, e], and, if `keeps`, those before segments [tasks, segments, d, r, e]."""
    q, _, v, _, _ = arrays
    tokens, batch, heads, width = v.shape
    tasks, r = arrays.tasks, arrays.shared
    out = np.empty(v.shape, v.dtype)
    last = np.empty((batch, heads, q.shape[-1], width), np.float32)
    starts = np.empty((len(tasks), segments(tokens) if keeps else 0, q.shape[-1], r, width), np.float32)

    def work(number: int, entry: int, head: int) -> None:
        task = _Task(arrays, entry, head)
        state = np.zeros(starts.shape[2:], np.float32)
        if first is not None:
            state[:] = first[entry, task.heads].swapaxes(0, 1)
        for place, span in enumerate(spans(tokens, SEGMENT)):
            if keeps:
                starts[number, place] = state
            segment, _, _ = task.segment(span, form, tokens if lengths is None else int(lengths[entry]))
            result = np.empty_like(segment.inputs.v)
            state = segment.forward(state, result)
            task.put(result, out, span)
        last[entry, task.heads] = state.swapaxes(0, 1)

    run(work, [(number, *task) for number, task in enumerate(tasks)])
    return out, last, starts


def _backward(arrays: _Arrays, form: RecurrenceForm, starts: Array, dout: Array) -> _Arrays:
    rate = None if arrays.rate is None else np.empty_like(arrays.rate)
    q, k, v, log_decay = map(np.empty_like, arrays[:4])
    gradients = _Arrays(q, k, v, log_decay, rate)

    def work(number: int, entry: int, head: int) -> None:
        task = _Task(arrays, entry, head)
        dstate = np.zeros_like(starts[number, 0])
        for place, span in reversed([*enumerate(spans(len(dout), SEGMENT))]):
            segment, unit_q, unit_k = task.segment(span, form, len(dout))
            segment.forward(starts[number, place], None)
            chunks = segment.inputs.q.shape[0]
            of_out = task.chunked(dout[span[0] : span[1], entry, task.heads], chunks)
            found, dstate = segment.backward(of_out, dstate)
            task.put_shared(unit_q.gradient(found.q, form), gradients.q, span)
            task.put_shared(unit_k.gradient(found.k, form), gradients.k, span)
            task.put(found.v, gradients.v, span)
            task.put(found.log_decay, gradients.log_decay, span)
            if gradients.rate is not None:
                task.put(found.rate, gradients.rate, span)

    run(work, [(number, *task) for number, task in enumerate(arrays.tasks)])
    return gradients


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
