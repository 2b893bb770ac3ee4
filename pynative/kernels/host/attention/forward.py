"""Attention in tiles of scores, on the host (after FlashAttention, Dao et al. 2022): the forward pass.

A thread goes through the scores s of its block a tile at a time, and keeps of a tile p = exp(s - m); causal attention
does not compute tiles above the diagonal. With l = sum p, out = p V / l, V the values: neither needs m to be the row's
largest score, only that no sum overflows or loses its digits. So m is 0 at first, which costs nothing, and where a sum
shows that it will not do, the block is computed again with the rows' maxima. j heads, q queries and k keys of a tile
[j, k, q]; e the size of a value's head.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.attention.heads import Block, Heads, row_stacks, stacks
from pynative.kernels.host.attention.masks import MASKED_SCORE, bits, keep
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import run
from pynative.memory.rounding import fill, widened

SMALLEST_SUM, LARGEST_SUM = 2.0**-40, 2.0**60
"""Bounds between which a row's sum of exp(s) has all its digits, and so has what is multiplied with it."""


def attention_forward(
    heads: Heads, out: Array, maximum: Array, inverse_sum: Array, largest: Array | None = None
) -> None:
    """Fill out [s, b, n, e], of any float type, with the heads' attention, and float32 [b, n, s] maximum, m of each
    row, its largest score or 0, and inverse_sum, 1 / sum exp(score - m). A row to which order, window and documents
    leave no key, with no mask given, has out 0, maximum MASKED_SCORE and inverse_sum 1.

    largest: float32 [b, n, s], -inf at first; is filled with each row's largest score. Where tiles are of a 16-bit
    type, that can have the error which follows from rounding its exponential to this type."""
    outs = stacks(out, heads.groups)
    maxima, inverse_sums = (row_stacks(array, heads.groups) for array in (maximum, inverse_sum))
    tops = None if largest is None else row_stacks(largest, heads.groups)

    def block(stack: int, span: slice, rows: slice) -> None:
        own = Block(heads, stack, span, rows)
        top = None if tops is None else tops[stack][span, rows][:, None]
        values, total = _weighted_values(own, None, top)
        maxima[stack][span, rows] = 0
        if not (total.min() > SMALLEST_SUM and total.max() < LARGEST_SUM):
            highest, values, total = _by_maximum(own)
            maxima[stack][span, rows] = highest[:, 0]
            if top is not None:
                top[...] = highest
        np.divide(1, total, out=total)
        inverse_sums[stack][span, rows] = total[:, 0]
        values *= (total * np.float32(heads.kept_scale)).transpose(0, 2, 1)
        fill(outs[stack][span, rows], values)

    blocks = [(span, rows) for span in heads.spans for rows in heads.blocks(span)]
    run(block, [(i, *each) for each in sorted(blocks, key=_last_first) for i in range(len(outs))])


def _last_first(block: tuple[slice, slice]) -> tuple[int, int]:
    """A key for sorting blocks (heads, queries) by descending position: late queries see most keys, so their blocks are
    begun first."""
    span, rows = block
    return -rows.start, span.start


def _weighted_values(block: Block, maximum: Array | None, top: Array | None = None) -> tuple[Array, Array]:
    """(p V after dropout [j, q, e], l [j, 1, q]) of a block, float32, m being `maximum` or 0. top [j, 1, q], without a
    maximum, is filled with each row's largest score."""
    (count, rows, _), width = block.queries.shape, block.values.shape[2]
    values, total = np.empty((count, rows, width), np.float32), np.empty((count, 1, rows), np.float32)
    tiles, memory = tuple(block.tiles()), block.heads.tile_memory()
    if not tiles:
        values[...], total[...] = 0, 0
    for keys in tiles:
        tile, accumulate = block.shaped(memory, keys), keys is not tiles[0]
        exponentials(block, keys, tile, maximum)
        if top is not None:
            np.maximum(top, _largest_of(tile), out=top)
        ENGINE.matmul(_ones(keys.stop - keys.start, tile.dtype), tile, total, accumulate=accumulate)
        dropout = block.dropout(keys)
        if dropout is not None:
            keep(tile, dropout, tile)
        ENGINE.matmul(tile.transpose(0, 2, 1), block.values[:, keys], values, accumulate=accumulate)
    return values, total


def _largest_of(tile: Array) -> Array:
    """The largest score of each row [j, 1, q] of a tile [j, k, q] of exp(score), its logarithm again; found by bits,
    whose order positive numbers have."""
    with np.errstate(divide="ignore"):
        return np.log(widened(bits(tile).max(axis=1, keepdims=True).view(tile.dtype)))


def _by_maximum(block: Block) -> tuple[Array, Array, Array]:
    """(m [j, 1, q], p V, l) of a block with the rows' largest scores as m. A row that sees none of the block's keys has
    values of 0, and m so low and l such that it counts for nothing beside other blocks."""
    largest = _maximum(block)
    nothing = np.isneginf(largest)
    largest[nothing] = 0
    values, total = _weighted_values(block, largest)
    largest[nothing], total[nothing] = MASKED_SCORE, 1
    return largest, values, total


def exponentials(
    block: Block, keys: slice, out: Array, maximum: Array | None, inverse_sum: Array | None = None
) -> None:
    """Fill a tile out [j, k, q] with exp(s - maximum) * inverse_sum of its scores s, maximum (None: 0) and inverse_sum
    (None: 1) [j, 1, q]. Without a given mask, keys that order, window or documents leave out have 0. With one, the
    scores of keys that mask, window or documents hide are at most MASKED_SCORE (-10000). Scores of keys that are not
    chosen are at most that in either case."""
    scores, diagonal, near = block.heads.scores, block.diagonal(keys), block.near(keys)
    ENGINE.score_exponentials(
        block.keys[:, keys], block.queries, out, scores.scale, block.limits(keys), maximum, inverse_sum,
        scores.form.soft_cap, block.bias(keys),
    )  # fmt: skip
    if diagonal is not None:
        rows, seen = diagonal
        keep(out[:, rows], seen, out[:, rows])
    if near is not None:
        keep(out, near, out)


def _maximum(block: Block) -> Array:
    """The largest score of each row of a block, float32 [j, 1, q]."""
    count, rows, _ = block.queries.shape
    largest = np.full((count, 1, rows), -np.inf, np.float32)
    for keys in block.tiles():
        scores = _scores(block, keys)
        limits, diagonal, near = block.limits(keys), block.diagonal(keys), block.near(keys)
        if limits is not None:
            np.minimum(scores, limits, out=scores)
        if diagonal is not None:
            place, seen = diagonal
            scores[:, place][:, seen == 0] = -np.inf
        if near is not None:
            scores[:, near == 0] = -np.inf
        np.maximum(largest, scores.max(axis=1, keepdims=True), out=largest)
    return largest


def _scores(block: Block, keys: slice) -> Array:
    """The scores [j, k, q] of a tile, float32, before any is left out."""
    count, rows, _ = block.queries.shape
    scores = np.empty((count, keys.stop - keys.start, rows), np.float32)
    ENGINE.matmul(block.keys[:, keys], block.queries.transpose(0, 2, 1), scores)
    scores *= np.float32(block.heads.scores.scale)
    cap, bias = block.heads.scores.form.soft_cap, block.bias(keys)
    if cap is not None:
        scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
    if bias is not None:
        scores += bias
    return scores


@lru_cache(maxsize=64)
def _ones(count: int, dtype: np.dtype[Any]) -> Array:
    """Ones [1, 1, count], whose product with a tile sums over its keys."""
    return np.ones((1, 1, count), dtype)
