"""The backward pass of attention in tiles of scores, on the host (after FlashAttention, Dao et al. 2022).

Kept from the forward pass: queries Q, keys K, values V, the output, and two numbers a row, m and 1/l. The
probabilities p = exp(s - m) / l of a tile are computed again; with D = rowsum(dout * out), and c P the dropout mask, P
of ones and zeros, c = 1 / (1 - rate):
    dV = c (p P)^T dout     ds = p (c P (dout V^T) - D)     dQ = scale ds K     dK = scale ds^T Q
where a soft cap multiplies ds by its slope, and ds is 0 for hidden scores.
j heads, q queries and k keys of a tile [j, k, q]; e the size of a value's head.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.attention.forward import exponentials
from pynative.kernels.host.attention.heads import Block, Heads, as_products, row_stacks, stacks
from pynative.kernels.host.attention.masks import keep, ones_where
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import run
from pynative.memory.rounding import fill, widened


def attention_backward(
    heads: Heads, dout: Array, out: Array, maximum: Array, inverse_sum: Array, gradients: tuple[Array, Array, Array]
) -> None:
    """Fill gradients (of queries, keys and values, of any float type) from dout [s, b, n, e]. out, maximum and
    inverse_sum: as `attention_forward` fills them, over all keys that the queries see, those of other blocks
    included."""
    scale, groups = np.float32(heads.scores.scale), heads.groups
    outs, upstream = stacks(out, groups), stacks(as_products(dout), groups)
    statistics = [row_stacks(array, groups) for array in (maximum, inverse_sum)]
    query_gradients, (key_gradient,), (value_gradient,) = (stacks(array, groups) for array in gradients)

    def task(span: slice) -> None:
        keys, values = (np.zeros(array[span].shape, np.float32) for array in (heads.keys, heads.values))
        memory = heads.tile_memory(), heads.tile_memory()
        for stack, queries in enumerate(query_gradients):
            for rows in heads.blocks(span):
                block = Block(heads, stack, span, rows)
                largest, inverse = (np.ascontiguousarray(x[stack][span, rows][:, None]) for x in statistics)
                own = Upstream(largest, inverse, upstream[stack][span, rows], outs[stack][span, rows])
                gradient = _block(block, own, memory, keys, values)
                gradient *= scale
                fill(queries[span, rows], gradient)
        keys *= scale
        values *= np.float32(heads.kept_scale)
        fill(key_gradient[span], keys)
        fill(value_gradient[span], values)

    run(task, [(span,) for span in heads.spans])


class Upstream:
    """The arrays from which, with a block's scores, its gradients are computed: dout [j, q, e] of j heads, q queries;
    the rows' `maximum`, `inverse_sum` and `delta` (sum of dout * out), float32 [j, 1, q]."""

    def __init__(self, maximum: Array, inverse_sum: Array, dout: Array, out: Array) -> None:
        self.maximum, self.inverse_sum, self.dout = maximum, inverse_sum, dout
        self.delta = np.einsum("jqd,jqd->jq", widened(dout), widened(out), order="C")[:, None]


def _block(
    block: Block, upstream: Upstream, memory: tuple[Array, Array], key_gradient: Array, value_gradient: Array
) -> Array:
    """Add the block's part to the gradients of keys and values, and return its queries' gradient; all without the
    factors `scale` and c. memory: two tiles to work in."""
    tiles = tuple(block.tiles())
    gradient = (np.empty if tiles else np.zeros)(block.queries.shape, np.float32)
    for keys in tiles:
        probabilities, scores = (block.shaped(part, keys) for part in memory)
        exponentials(block, keys, probabilities, upstream.maximum, upstream.inverse_sum)
        _add_to_values(block, keys, probabilities, upstream.dout, value_gradient, dropped=scores)
        _scores_gradient(block, keys, probabilities, upstream, scores)
        ENGINE.matmul(scores, block.queries, key_gradient[:, keys], accumulate=True)
        ENGINE.matmul(scores.transpose(0, 2, 1), block.keys[:, keys], gradient, accumulate=keys is not tiles[0])
    return gradient


def _add_to_values(
    block: Block, keys: slice, probabilities: Array, dout: Array, value_gradient: Array, dropped: Array
) -> None:
    """Add a tile's part (p P)^T dout to the gradient of the values; `dropped` is memory to work in."""
    dropout = block.dropout(keys)
    if dropout is None:
        dropped = probabilities
    else:
        keep(probabilities, dropout, dropped)
    ENGINE.matmul(dropped, dout, value_gradient[:, keys], accumulate=True)


def _scores_gradient(block: Block, keys: slice, probabilities: Array, upstream: Upstream, out: Array) -> None:
    """Fill a tile `out` with ds, the gradient of its scores, from their probabilities; masked ones have none."""
    dropout, shown = block.dropout(keys), block.shown(keys)
    kept = None if dropout is None else ones_where(dropout, probabilities)
    ENGINE.score_gradient(
        block.values[:, keys], upstream.dout, probabilities, upstream.delta, out, kept, block.heads.kept_scale,
        _slope(block, keys),
    )  # fmt: skip
    if shown is not None:
        keep(out, shown, out)


def _slope(block: Block, keys: slice) -> Array | None:
    """The derivative [j, k, q] of a tile's capped scores with respect to the scores before the cap; None without a
    cap."""
    scores = block.heads.scores
    if scores.form.soft_cap is None:
        return None
    slope = np.empty((len(block.queries), keys.stop - keys.start, block.queries.shape[1]), block.heads.dtype)
    ENGINE.soft_cap_slope(block.keys[:, keys], block.queries, slope, scores.scale / scores.form.soft_cap)
    return slope
