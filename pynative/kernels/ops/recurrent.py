"""Linear attention of MindSpore operators: a recurrence in chunks, the short convolution before it, gates, and a state
space layer's scaled heads and norm.

None has a backward of its own: the tape differentiates them. They compute in float32. See `host.recurrence_chunks` for
the recurrence's formulas, `contract/recurrent.py` for the letters.
"""

from functools import lru_cache

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.attention.recurrence import CHUNK, LENGTH_EPSILON, RecurrenceForm
from parallel_core.numerics.dtypes import Array
from pynative.kernels.ops.elementwise import cast

FLOAT32 = mindspore.float32


def _zeros(*shape: int) -> Tensor:
    return Tensor.from_numpy(np.zeros(shape, np.float32))


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """(silu of the convolution of x behind the w - 1 earlier tokens `before` [w - 1, b, c], all rows that it read,
    float32 [w - 1 + s, b, c])."""
    rows, taps = ops.cat((before, cast(x, FLOAT32)), 0), cast(weight, FLOAT32)
    count, tokens = taps.shape[2], x.shape[0]
    total = sum((rows[tap : tap + tokens] * taps[:, 0, tap] for tap in range(1, count)), rows[:tokens] * taps[:, 0, 0])
    if bias is not None:
        total = total + cast(bias, FLOAT32)
    return cast(total * ops.sigmoid(total), x.dtype), rows


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _convolved(x, weight, bias, _zeros(weight.shape[2] - 1, *x.shape[1:]))[0]


def continued_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, lengths: Array | None
) -> tuple[Tensor, Tensor]:
    y, rows = _convolved(x, weight, bias, cast(before, FLOAT32))
    reach, batch = before.shape[0], x.shape[1]
    ends = np.full(batch, x.shape[0]) if lengths is None else lengths
    places = (ends + np.arange(reach)[:, None]) * batch + np.arange(batch)
    flat = rows.reshape(-1, rows.shape[-1])
    last = ops.gather(flat, Tensor(places.ravel().astype(np.int32)), 0).reshape(before.shape)
    return y, cast(last, before.dtype)


def recurrent_gates(x: Tensor, rate: Tensor | None, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    before = cast(x, FLOAT32) + cast(dt_bias, FLOAT32)
    step = ops.relu(before) + ops.log(1.0 + ops.exp(-ops.abs(before)))
    log_decay = -(ops.exp(cast(a_log, FLOAT32)) * step)
    return log_decay, step if rate is None else ops.sigmoid(cast(rate, FLOAT32))


def gate(x: Tensor, z: Tensor, activation: str) -> Tensor:
    gates = cast(z, FLOAT32).reshape(x.shape)
    factor = ops.sigmoid(gates)
    return cast(cast(x, FLOAT32) * (factor if activation == "sigmoid" else gates * factor), x.dtype)


@lru_cache(maxsize=16)
def _mask(kind: str, size: int, width: int = 0) -> Tensor:
    """Float32 [size, size] of 0 and 1: "lower" with its diagonal, "below" without, "one" the diagonal, or "pair", the
    lower left block of each square of 2 `width` rows on the diagonal."""
    rows, columns = np.indices((size, size))
    masks = {"lower": rows >= columns, "below": rows > columns, "one": rows == columns}
    if kind == "pair":
        same = rows // (2 * width) == columns // (2 * width)
        return Tensor((same & (rows // width > columns // width)).astype(np.float32))
    return Tensor(masks[kind].astype(np.float32))


def _inverse(below: Tensor) -> Tensor:
    """(I + below)^-1, below [..., C, C] zero on and above its diagonal, from the inverses of its diagonal blocks of 1,
    2, 4 ... rows."""
    size, width = below.shape[-1], 1
    inverse = _mask("one", size) + below * 0.0
    while width < size:
        inverse = inverse - ops.matmul(ops.matmul(inverse, below * _mask("pair", size, width)), inverse)
        width *= 2
    return inverse


def _chunked(x: Tensor, size: int) -> Tensor:
    """x [s, b, n, ...] as float32 chunks of C = `size` tokens, [chunks, b, n, C, ...], with zeros behind the last
    token."""
    tokens, missing = x.shape[0], -x.shape[0] % size
    wide = cast(x, FLOAT32)
    wide = ops.cat((wide, _zeros(missing, *x.shape[1:])), 0) if missing else wide
    cut = wide.reshape((tokens + missing) // size, size, *x.shape[1:])
    return cut.transpose(0, 2, 3, 1, *range(4, cut.ndim))


def _unit(x: Tensor) -> Tensor:
    return x * ops.rsqrt((x * x).sum(-1, keepdims=True) + LENGTH_EPSILON)


def _recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm, state: Tensor
) -> tuple[Tensor, Tensor]:
    """(output [s, b, n, e], state behind the last token [b, m, r, d, e]) of the recurrence from `state` on, r value
    heads a key head."""
    tokens, batch, keys, _ = q.shape
    heads, width = v.shape[2:]
    size = min(CHUNK, 1 << max(tokens - 1, 1).bit_length())
    queries, rows = (_chunked(x, size).expand_dims(3) for x in (q, k))
    if form.unit:
        queries, rows = _unit(queries), _unit(rows)
    grouped = (-1, batch, keys, heads // keys, size)
    values = _chunked(v, size).reshape(*grouped, width)
    total = ops.cumsum(_chunked(log_decay, size).reshape(grouped), -1).expand_dims(-1)
    lower = _mask("lower", size)
    between = ops.exp((total - total.swapaxes(-1, -2)) * lower) * lower
    scores = ops.matmul(queries * form.scale, rows.swapaxes(-1, -2)) * between
    decayed, left = ops.exp(total), ops.exp(total[..., -1:, :] - total)
    rates = None if rate is None else _chunked(rate, size).reshape(grouped).expand_dims(-1)
    if form.delta:
        overlaps = ops.matmul(rows, rows.swapaxes(-1, -2)) * between * _mask("below", size)
        inverse = _inverse(overlaps if rates is None else overlaps * rates)
    outs = []
    for chunk in range(len(values)):
        new = values[chunk]
        if form.delta:
            new = new - decayed[chunk] * ops.matmul(rows[chunk], state)
        new = new if rates is None else new * rates[chunk]
        new = ops.matmul(inverse[chunk], new) if form.delta else new
        read = decayed[chunk] * ops.matmul(queries[chunk] * form.scale, state)
        outs.append(read + ops.matmul(scores[chunk], new))
        added = ops.matmul((rows[chunk] * left[chunk]).swapaxes(-1, -2), new)
        state = decayed[chunk][..., -1:, :] * state + added
    out = ops.stack(outs).reshape(-1, batch, heads, size, width).transpose(0, 3, 1, 2, 4)
    return cast(out.reshape(-1, batch, heads, width)[:tokens], v.dtype), state


def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm
) -> Tensor:
    keys = q.shape[2]
    state = _zeros(q.shape[1], keys, v.shape[2] // keys, q.shape[3], v.shape[3])
    return _recurrence(q, k, v, log_decay, rate, form, state)[0]


def continued_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm, state: Tensor,
    lengths: Array | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if lengths is not None:
        alive = Tensor((np.arange(len(q))[:, None] < lengths)[..., None].astype(np.float32))
        log_decay = log_decay * alive
        rate = (alive + log_decay * 0.0) if rate is None else rate * alive
    grouped = (len(state), q.shape[2], -1, *state.shape[2:])
    out, last = _recurrence(q, k, v, log_decay, rate, form, state.reshape(grouped))
    return out, last.reshape(state.shape)


def add_scaled_heads(y: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    return cast(cast(y, FLOAT32) + cast(x, FLOAT32) * cast(factors, FLOAT32).expand_dims(-1), y.dtype)


def grouped_rms_norm(x: Tensor, weight: Tensor, groups: int, epsilon: float) -> Tensor:
    grouped = cast(x, FLOAT32).reshape(*x.shape[:-1], groups, -1)
    normed = grouped * ops.rsqrt((grouped * grouped).mean(-1, keep_dims=True) + epsilon)
    return cast(normed.reshape(x.shape) * cast(weight, FLOAT32), x.dtype)
