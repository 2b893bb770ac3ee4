"""A segment of a linear recurrence, for the value heads of one key head, forward and backward, in plain arrays.

Within a chunk of C tokens let t be the running sum of log decays. Then with L = exp(t_i - t_j) for i >= j, else 0,

    rows = r (v - exp(t) k S)    new = (I + tril(r L k k^T, -1))^-1 rows    (without delta: new = r v)
    out = exp(t) q S + (L q k^T) new    S <- exp(t_C) S + (exp(t_C - t) k)^T new

which is the WY form of Yang et al. (2024), section 3.3, with the state multiplied before the inverse.
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
    for start in range(0, size, BASE):
        own = slice(start, start + BASE)
        inverse[..., own, own] = _substituted(below[..., own, own])
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
    result: Array = np.moveaxis(inverse, -1, 0).reshape(below.shape)
    return result


def _of_decays(reading: Array, writing: Array, between: Array) -> Array:
    """Gradient [r, C] of log decays, of terms times their decay. reading [r, C]: decayed up to a token; writing: from
    behind it to the end; between [r, C, C]: from behind the second token up to the first. Each is added where it acts:
    differences of sums up to both ends would lose digits."""
    result: Array = np.cumsum(reading[:, ::-1], axis=1)[:, ::-1].copy()
    result[:, 1:] += np.cumsum(writing, axis=1)[:, :-1]
    up_to = np.cumsum(between[:, ::-1], axis=1)[:, ::-1]
    result += np.einsum("rij,ij->ri", up_to, _below(between.shape[1], -1))
    return result


class Inputs(NamedTuple):
    """Of a segment, or their gradients."""

    q: Array
    """[m, C, d]."""
    k: Array
    v: Array
    """[r, m, C, e]."""
    log_decay: Array
    """[r, m, C]."""
    rate: Array


class Segment:
    """What of a segment does not depend on the state before it."""

    def __init__(self, inputs: Inputs, delta: bool) -> None:
        self.inputs, self.delta = inputs, delta
        q, k, _, log_decay, rate = inputs
        size = q.shape[1]
        total = np.cumsum(log_decay, axis=-1)
        self.decayed = np.exp(total)[..., None]
        """[r, m, C, 1], of what was there before the chunk."""
        self.left = np.exp(total[..., -1:] - total)[..., None]
        """[r, m, C, 1], of what the token adds, behind the chunk."""
        between = total[..., :, None] - total[..., None, :]
        np.minimum(between, 0, out=between)
        np.exp(between, out=between)
        between *= _below(size, 0)
        self.between, self.rate = between, rate[..., None]
        self.scores = (q @ k.swapaxes(1, 2)) * between
        if delta:
            self.overlaps = (k @ k.swapaxes(1, 2)) * between
            self.overlaps *= _below(size, -1)
            self.inverse = inverse_of_unit_lower(self.overlaps * self.rate)
        self.states: list[Array] = []
        self.new: list[Array] = []
        self.erased: list[Array] = []

    def forward(self, state: Array, out: Array | None) -> Array:
        """Fill out [r, m, C, e] unless None; the state [r, d, e] behind the segment."""
        q, k, v, _, _ = self.inputs
        for chunk in range(len(q)):
            decayed, rows = self.decayed[:, chunk], v[:, chunk]
            if self.delta:
                self.erased.append(k[chunk] @ state)
                rows = rows - decayed * self.erased[-1]
            rows = rows * self.rate[:, chunk]
            new = self.inverse[:, chunk] @ rows if self.delta else rows
            if out is not None:
                np.matmul(self.scores[:, chunk], new, out=out[:, chunk])
                out[:, chunk] += decayed * (q[chunk] @ state)
            self.states.append(state)
            self.new.append(new)
            state = decayed[:, -1:] * state + (k[chunk] * self.left[:, chunk]).swapaxes(1, 2) @ new
        return state

    def backward(self, dout: Array, dstate: Array) -> tuple[Inputs, Array]:
        """Gradients of out and of the state behind the segment, behind `forward` -> of the inputs and of the state
        before it."""
        q, k, v, log_decay, rate = self.inputs
        gradients = Inputs(
            np.empty_like(q), np.empty_like(k), np.empty_like(v), np.empty_like(log_decay), np.empty_like(rate)
        )
        for chunk in reversed(range(len(q))):
            dstate = self._through(chunk, dout[:, chunk], dstate, gradients)
        return gradients, dstate

    def _through(self, chunk: int, dout: Array, dstate: Array, gradients: Inputs) -> Array:
        """Fill one chunk's gradients; the gradient of the state before."""
        q, k, v = self.inputs.q[chunk], self.inputs.k[chunk], self.inputs.v[:, chunk]
        decayed, left, rate = self.decayed[:, chunk], self.left[:, chunk], self.rate[:, chunk]
        state, new, between = self.states[chunk], self.new[chunk], self.between[:, chunk]
        read, kept = decayed * q, left * k  # [r, C, d]
        dnew = self.scores[:, chunk].swapaxes(1, 2) @ dout + kept @ dstate
        dscores = dout @ new.swapaxes(1, 2)
        dread, dkept = dout @ state.swapaxes(1, 2), new @ dstate.swapaxes(1, 2)
        end = decayed[:, -1]  # [r, 1]
        before = end[..., None] * dstate + read.swapaxes(1, 2) @ dout
        reading, of_scores = (dread * read).sum(-1), dscores * self.scores[:, chunk]
        dscores *= between
        dscores = dscores.sum(0)  # [C, C], of q k^T
        dq, dk = (decayed * dread).sum(0), (left * dkept).sum(0)
        drate = gradients.rate[:, chunk]
        if self.delta:
            drows = self.inverse[:, chunk].swapaxes(1, 2) @ dnew
            dvalues, erased = rate * drows, self.erased[chunk]
            drate[:] = (drows * (v - decayed * erased)).sum(-1)
            derased = -decayed * dvalues
            reading += (derased * erased).sum(-1)
            dk += (derased @ state.swapaxes(1, 2)).sum(0)
            before += k.T @ derased
            doverlaps = -(drows @ new.swapaxes(1, 2)) * _below(len(q), -1)
            of_overlaps = doverlaps * self.overlaps[:, chunk]
            drate += of_overlaps.sum(-1)
            of_overlaps *= rate
            of_scores += of_overlaps
            doverlaps *= between * rate
            of_keys = doverlaps.sum(0)
            dk += (of_keys + of_keys.T) @ k
        else:
            dvalues = rate * dnew
            drate[:] = (dnew * v).sum(-1)
        through = end * np.einsum("rde,rde->r", dstate, state)[:, None]
        gradients.log_decay[:, chunk] = through + _of_decays(reading, (dkept * kept).sum(-1), of_scores)
        gradients.v[:, chunk] = dvalues
        np.add(dq, dscores @ k, out=gradients.q[chunk])
        np.add(dk, dscores.T @ q, out=gradients.k[chunk])
        return before
