"""A key/value cache: rows written into it, and attention over it, of MindSpore operators."""

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule
from pynative.kernels.ops.elementwise import cast, soft_cap, widened_on_cpu

_product = ops.BatchMatMul()
_product_with_transposed = ops.BatchMatMul(transpose_b=True)


@widened_on_cpu("cache")
def write_slots(cache: Tensor, rows: Tensor, slots: Array) -> Tensor:
    place, text = (x.astype(np.int32) for x in np.nonzero(slots >= 0))
    into = from_numpy(np.stack((slots[place, text], text), -1).astype(np.int32))
    values = ops.gather_nd(rows, from_numpy(np.stack((place, text), -1)))
    return ops.tensor_scatter_update(cache, into, values)


@widened_on_cpu("q")
def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, ages: Array, rule: AttentionRule, sinks: Tensor | None = None
) -> Tensor:
    batch, heads, size = q.shape[1:]
    keys, values = (x[: len(ages)].transpose(1, 2, 0, 3) for x in (k, v))
    grouped = (q * rule.scale).reshape(batch, keys.shape[1], -1, size)
    scores = cast(_product_with_transposed(grouped, keys), mindspore.float32).reshape(batch, heads, -1)
    form, first = rule.form, rule.head_offset
    if form.soft_cap is not None:
        scores = soft_cap(scores, form.soft_cap)
    if form.has_bias:
        bias = form.bias(range(first, first + heads), -ages.T).swapaxes(0, 1)
        scores = scores + from_numpy(np.ascontiguousarray(bias))
    hidden = (ages < 0) if form.window is None else (ages < 0) | (ages > form.window)
    scores = ops.masked_fill(scores, from_numpy(np.ascontiguousarray(hidden.T[:, None])), -np.inf)
    if sinks is not None:  # a sink is one more column of scores, with no value
        column = cast(sinks, mindspore.float32).reshape(1, heads, 1)
        scores = ops.cat((scores, ops.broadcast_to(column, (batch, heads, 1))), -1)
    probabilities = ops.softmax(scores, -1)[..., : len(ages)]
    weights = cast(probabilities, values.dtype).reshape(*grouped.shape[:3], -1)
    return _product(weights, values).reshape(1, batch, -1)
