"""A segment of a linear recurrence, for value heads that share a key head, in plain arrays.

Within a chunk of C tokens let t be the running sum of log decays. Then with L = exp(t_i - t_j) for i >= j, else 0,

    rows = w (v - exp(t) k S)    new = (I + tril(w L k k^T, -1))^-1 rows    (without delta: new = w v)
    out = exp(t) q S + (L q k^T) new    S <- exp(t_C) S + k^T (exp(t_C - t) new)

with queries q, keys k, values v, rates w and the state S: the WY form of Yang et al. (2024), section 3.3, with the
state multiplied before the inverse. Value heads lie beside each other, in the state too, [d, r e]: a product with
queries or keys, which they share, is one for all heads. Queries lie above keys, so that with delta one product reads
the state for both. Chunk after chunk there is only what needs the state; everything else is computed for all chunks at
once.

m chunks; C tokens of each, d size of a key, e of a value, r value heads; p 2, or without delta 1.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parallel_core.attention.recurrence import CHUNK
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.unit_lower import BASE, below_diagonal, inverse_of_unit_lower


@lru_cache(maxsize=8)
def _limits(size: int) -> Array:
    """Float32 [1, C, C] to add to exponents: 0 on the diagonal and below, -inf above."""
    return np.where(below_diagonal(size, 0) > 0, np.float32(0), np.float32(-np.inf))[None]


def chunk_of(length: int) -> int:
    """The number of tokens of a chunk, for a sequence of `length` tokens: 16 for at most 16, 32 for at most 32, else
    64."""
    return next((size for size in (BASE, 2 * BASE) if length <= size), CHUNK)


def by_head(rows: Array) -> Array:
    """A view of rows [..., C, r, e] as [..., r, C, e]."""
    return rows.swapaxes(-3, -2)


def multiply(left: Array, right: Array, out: Array, accumulate: bool = False) -> None:
    """Write the product of two matrices into `out`, or with `accumulate` add it, by `Engine.matmul` for stacks, a stack
    of one: for single matrices an engine may use another library, made for large ones."""
    ENGINE.matmul(left[None], right[None], out[None], accumulate=accumulate)


def _between(total: Array) -> Array:
    """L [m, r, C, C] of total = t [m, C, r]: exp(t_i - t_j), and 0 above the diagonal. The differences are products of
    pairs, [t_i, 1] and [1, -t_j], which the engine fuses with what follows."""
    heads, size = np.moveaxis(total, 2, 1), total.shape[1]
    pairs = np.ones((2, *heads.shape, 2), np.float32)
    pairs[0, ..., 0], pairs[1, ..., 1] = heads, -heads
    up_to, since = pairs.reshape(2, -1, size, 2)
    out = np.empty((*heads.shape, size), np.float32)
    ENGINE.score_exponentials(up_to, since, out.reshape(-1, size, size), 1.0, limits=_limits(size))
    return out


class Inputs(NamedTuple):
    """The inputs of a segment of m chunks of C tokens, or their gradients: queries and keys qk [m, 2, C, d], and for r
    value heads values v [m, C, r, e], logarithms of decays log_decay [m, C, r] and rates rate [m, C, r]."""

    qk: Array
    v: Array
    log_decay: Array
    rate: Array


class Segment:
    """A segment of a linear recurrence: the values that follow from its inputs alone, and after `forward` those that
    depend on the state before it, too. delta: whether the recurrence follows the delta rule."""

    def __init__(self, inputs: Inputs, delta: bool) -> None:
        self.inputs, self.delta, self.parts = inputs, delta, 1 + delta
        qk, v, log_decay, rate = inputs
        chunks, _, size, width = qk.shape
        total = np.cumsum(log_decay, axis=1)
        self.decayed = np.exp(total)[..., None]
        """exp(t) [m, C, r, 1]: the decay, at each token, of the state before the chunk."""
        self.left = np.exp(total[:, -1:] - total)[..., None]
        """exp(t_C - t) [m, C, r, 1]: the decay, behind the chunk, of what each token adds."""
        self.ends = np.repeat(self.decayed[:, -1, :, 0], v.shape[3], axis=1)
        """exp(t_C) [m, r e]: the decay, behind the chunk, of the state before it."""
        self.between, self.rate = _between(total), rate[..., None]
        """L [m, r, C, C], and the rates [m, C, r, 1]."""
        products = np.empty((chunks, self.parts * size, size), np.float32)
        ENGINE.matmul(qk[:, : self.parts].reshape(chunks, -1, width), qk[:, 1].swapaxes(1, 2), products)
        self.scores = products[:, None, :size] * self.between
        if delta:
            self.overlaps = products[:, None, size:] * self.between
            self.overlaps *= below_diagonal(size, -1)
            self.rates = np.ascontiguousarray(np.moveaxis(rate, 2, 1))[..., None]
            self.inverse = inverse_of_unit_lower(self.overlaps * self.rates)
            self.erasing = self.rate * self.decayed
        self.states = np.empty((chunks + 1, width, self.ends.shape[1]), np.float32)
        """States [m + 1, d, r e] before each chunk and behind the last."""
        self.reads = np.empty((chunks, self.parts, *v.shape[1:]), np.float32)
        """q S and, with delta, k S, [m, p, C, r, e], of the state before each chunk."""

    def forward(self, state: Array, out: Array | None) -> Array:
        """Fill out [m, C, r, e] (m chunks of C tokens, r value heads) unless it is None, from the state [d, r, e]
        before the segment, and return the state behind it."""
        (qk, v, _, _), states = self.inputs, self.states
        states[0] = state.reshape(states[0].shape)
        rows = self.rate * v
        self.new = np.empty(v.shape, np.float32) if self.delta else rows
        self.placed = np.empty(v.shape, np.float32) if self.delta else self.left * rows
        for chunk, end in enumerate(self.ends):
            if self.delta:
                self._renew(chunk, rows[chunk])
            np.multiply(states[chunk], end, out=states[chunk + 1])
            multiply(qk[chunk, 1].T, self.placed[chunk].reshape(-1, len(end)), states[chunk + 1], accumulate=True)
        if not self.delta:
            ENGINE.matmul(qk[:, 0], states[:-1], self.reads.reshape(len(v), v.shape[1], -1))
        if out is not None:
            np.multiply(self.reads[:, 0], self.decayed, out=out)
            ENGINE.matmul(self.scores, by_head(self.new), by_head(out), accumulate=True)
        return states[-1].reshape(state.shape)

    def _renew(self, chunk: int, rows: Array) -> None:
        """Fill the chunk's q S and k S (`reads`), new, and new times its decay up to the chunk's end (`placed`); rows,
        w v on entry, become the rows that the inverse multiplies."""
        qk, reads = self.inputs.qk[chunk], self.reads[chunk]
        multiply(qk.reshape(-1, qk.shape[2]), self.states[chunk], reads.reshape(-1, self.states.shape[2]))
        rows -= self.erasing[chunk] * reads[1]
        ENGINE.matmul(self.inverse[chunk], by_head(rows), by_head(self.new[chunk]))
        np.multiply(self.left[chunk], self.new[chunk], out=self.placed[chunk])
