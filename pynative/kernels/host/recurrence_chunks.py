"""A segment of a linear recurrence, for the value heads of one key head, forward and backward, in plain arrays.

Within a chunk of C tokens let t be the running sum of log decays. Then with L = exp(t_i - t_j) for i >= j, else 0,

    rows = r (v - exp(t) k S)    new = (I + tril(r L k k^T, -1))^-1 rows    (without delta: new = r v)
    out = exp(t) q S + (L q k^T) new    S <- exp(t_C) S + (exp(t_C - t) k)^T new

which is the WY form of Yang et al. (2024), section 3.3, with the state multiplied before the inverse. Value heads lie
beside each other, in the state too, [d, r, e]: a product with queries or keys, which they share, is one for all heads.
m chunks; C tokens of each, d size of a key, e of a value, r value heads.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parallel_core.attention.recurrence import CHUNK
from parallel_core.numerics.dtypes import Array

BASE = 16
"""Rows of a triangle that is inverted one by one."""


@lru_cache(maxsize=8)
def _below(size: int, diagonal: int) -> Array:
    """Float32 [C, C]: 1 on the diagonal of this number and below."""
    return np.tril(np.ones((size, size), np.float32), diagonal)


def chunk_of(length: int) -> int:
    """Tokens of a chunk of a sequence of this length."""
    return next((size for size in (BASE, 2 * BASE) if length <= size), CHUNK)


def inverse_of_unit_lower(below: Array) -> Array:
    """(I + below)^-1, below [..., C, C] zero on and above its diagonal: small triangles by substitution, larger ones of
    their halves."""
    size, inverse = below.shape[-1], np.zeros_like(below)
    own = [slice(start, start + BASE) for start in range(0, size, BASE)]
    small = _substituted(np.stack([below[..., rows, rows] for rows in own]))
    for rows, triangle in zip(own, small, strict=True):
        inverse[..., rows, rows] = triangle
    width = BASE
    while width < size:
        for start in range(0, size, 2 * width):
            first, second = slice(start, start + width), slice(start + width, start + 2 * width)
            product = inverse[..., second, second] @ below[..., second, first] @ inverse[..., first, first]
            np.negative(product, out=inverse[..., second, first])
        width *= 2
    return inverse


def _substituted(below: Array) -> Array:
    """The same of small triangles, all of them at once a row at a time."""
    rows = np.ascontiguousarray(np.moveaxis(below.reshape(-1, BASE, BASE), 0, -1))
    inverse = np.zeros_like(rows)
    inverse[0, 0] = 1
    for row in range(1, BASE):
        np.einsum("kn,kjn->jn", rows[row, :row], inverse[:row, :row], out=inverse[row, :row])
        np.negative(inverse[row, :row], out=inverse[row, :row])
        inverse[row, row] = 1
    return np.moveaxis(inverse, -1, 0).reshape(below.shape)


def _of_decays(reading: Array, writing: Array, between: Array) -> Array:
    """Gradient [C, r] of log decays, of terms times their decay. reading [C, r]: decayed up to a token; writing: from
    behind it to the end; between [r, C, C]: from behind the second token up to the first. Each is added where it acts:
    differences of sums up to both ends would lose digits."""
    result: Array = np.cumsum(reading[::-1], axis=0)[::-1].copy()
    result[1:] += np.cumsum(writing, axis=0)[:-1]
    up_to = np.cumsum(between[:, ::-1], axis=1)[:, ::-1]
    result += np.einsum("rij,ij->ir", up_to, _below(between.shape[1], -1))
    return result


def _by_head(matrices: Array, rows: Array) -> Array:
    """matrices [r, C, C] times each head's rows [C, r, e] -> [C, r, e]."""
    result = np.empty_like(rows)
    np.matmul(matrices, rows.swapaxes(0, 1), out=result.swapaxes(0, 1))
    return result


def _dots(x: Array, y: Array) -> Array:
    """[C, r, e] twice -> [C, r]."""
    result: Array = np.einsum("cre,cre->cr", x, y)
    return result


class Inputs(NamedTuple):
    """Inputs of a segment, or their gradients."""

    q: Array
    """[m, C, d]."""
    k: Array
    v: Array
    """[m, C, r, e]."""
    log_decay: Array
    """[m, C, r]."""
    rate: Array


class Segment:
    """The values of a segment that do not depend on the state before it."""

    def __init__(self, inputs: Inputs, delta: bool) -> None:
        self.inputs, self.delta = inputs, delta
        q, k, _, log_decay, rate = inputs
        size = q.shape[1]
        total = np.cumsum(log_decay, axis=1)
        self.decayed = np.exp(total)[..., None]
        """[m, C, r, 1], of what was there before the chunk."""
        self.left = np.exp(total[:, -1:] - total)[..., None]
        """[m, C, r, 1], of what the token adds, behind the chunk."""
        by_head = np.ascontiguousarray(np.moveaxis(total, 2, 1))
        between = by_head[..., :, None] - by_head[..., None, :]
        np.minimum(between, 0, out=between)
        np.exp(between, out=between)
        between *= _below(size, 0)
        self.between, self.rate = between, rate[..., None]
        """[m, r, C, C] and [m, C, r, 1]."""
        self.scores = (q @ k.swapaxes(1, 2))[:, None] * between
        if delta:
            self.overlaps = (k @ k.swapaxes(1, 2))[:, None] * between
            self.overlaps *= _below(size, -1)
            self.rates = np.ascontiguousarray(np.moveaxis(rate, 2, 1))[..., None]
            self.inverse = inverse_of_unit_lower(self.overlaps * self.rates)
        self.states: list[Array] = []
        self.new: list[Array] = []
        self.erased: list[Array] = []

    def forward(self, state: Array, out: Array | None) -> Array:
        """Fill out [m, C, r, e] unless None; the state [d, r, e] behind the segment."""
        q, k, v, _, _ = self.inputs
        for chunk, rows in enumerate(v):
            flat, decayed, shape = state.reshape(len(state), -1), self.decayed[chunk], rows.shape
            if self.delta:
                self.erased.append((k[chunk] @ flat).reshape(shape))
                rows = rows - decayed * self.erased[-1]
            rows = rows * self.rate[chunk]
            new = _by_head(self.inverse[chunk], rows) if self.delta else rows
            if out is not None:
                read = (q[chunk] @ flat).reshape(shape)
                read *= decayed
                np.add(_by_head(self.scores[chunk], new), read, out=out[chunk])
            self.states.append(state)
            self.new.append(new)
            added = k[chunk].T @ (self.left[chunk] * new).reshape(len(new), -1)
            state = decayed[-1] * state
            state += added.reshape(state.shape)
        return state

    def backward(self, dout: Array, dstate: Array) -> tuple[Inputs, Array]:
        """Gradients of out and of the state behind the segment, behind `forward` -> of the inputs and of the state
        before it."""
        gradients = Inputs(*map(np.empty_like, self.inputs))
        for chunk in reversed(range(len(dout))):
            dstate = self._through(chunk, dout[chunk], dstate, gradients)
        return gradients, dstate

    def _through(self, chunk: int, dout: Array, dstate: Array, gradients: Inputs) -> Array:
        """Fill one chunk's gradients; the gradient of the state before."""
        q, k, _, _, _ = (each[chunk] for each in self.inputs)
        decayed, left, state, new = self.decayed[chunk], self.left[chunk], self.states[chunk], self.new[chunk]
        flat, of_flat = state.reshape(len(state), -1), dstate.reshape(len(state), -1)
        size, end = len(q), decayed[-1]  # end: [r, 1]
        read, written = (q @ flat).reshape(dout.shape), (k @ of_flat).reshape(dout.shape)
        dnew = _by_head(self.scores[chunk].swapaxes(1, 2), dout)
        dnew += left * written
        dread, placed = (decayed * dout).reshape(size, -1), (left * new).reshape(size, -1)
        before, dq, dk = q.T @ dread, dread @ flat.T, placed @ of_flat.T
        reading, writing = decayed[..., 0] * _dots(dout, read), left[..., 0] * _dots(new, written)
        dscores = dout.swapaxes(0, 1) @ new.transpose(1, 2, 0)  # [r, C, C]
        of_scores = dscores * self.scores[chunk]
        dscores *= self.between[chunk]
        of_products = dscores.sum(0)  # the gradient of q k^T
        if self.delta:
            drows, derased = self._through_inverse(chunk, dnew, gradients)
            erasing = derased.reshape(size, -1)
            reading += _dots(derased, self.erased[chunk])
            dk += erasing @ flat.T
            before += k.T @ erasing
            of_keys = self._of_overlaps(chunk, drows, of_scores, gradients)
            dk += (of_keys + of_keys.T) @ k
        else:
            np.multiply(self.rate[chunk], dnew, out=gradients.v[chunk])
            gradients.rate[chunk] = _dots(dnew, self.inputs.v[chunk])
        through = end[:, 0] * np.einsum("dre,dre->r", dstate, state)
        gradients.log_decay[chunk] = through + _of_decays(reading, writing, of_scores)
        np.add(dq, of_products @ k, out=gradients.q[chunk])
        np.add(dk, of_products.T @ q, out=gradients.k[chunk])
        result: Array = end * dstate
        result += before.reshape(result.shape)
        return result

    def _through_inverse(self, chunk: int, dnew: Array, gradients: Inputs) -> tuple[Array, Array]:
        """Fill the gradient of values and, of the rows, that of rates; the gradients of the rows before the inverse and
        of what was erased, [C, r, e]."""
        decayed, rate, erased = self.decayed[chunk], self.rate[chunk], self.erased[chunk]
        drows = _by_head(self.inverse[chunk].swapaxes(1, 2), dnew)
        dvalues = np.multiply(rate, drows, out=gradients.v[chunk])
        derased = decayed * dvalues
        np.negative(derased, out=derased)
        gradients.rate[chunk] = _dots(drows, self.inputs.v[chunk] - decayed * erased)
        return drows, derased

    def _of_overlaps(self, chunk: int, drows: Array, of_scores: Array, gradients: Inputs) -> Array:
        """Add the overlaps' part of the gradients of rates and decays (of_scores); the gradient of k k^T, [C, C]."""
        rates = self.rates[chunk]
        doverlaps = drows.swapaxes(0, 1) @ self.new[chunk].transpose(1, 2, 0)
        doverlaps *= -_below(len(drows), -1)
        of_overlaps = doverlaps * self.overlaps[chunk]
        gradients.rate[chunk] += of_overlaps.sum(-1).T
        of_overlaps *= rates
        of_scores += of_overlaps
        doverlaps *= self.between[chunk]
        doverlaps *= rates
        result: Array = doverlaps.sum(0)
        return result
