"""The gradients of a segment of a linear recurrence. Letters and formulas are those of `recurrence_chunks`."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.recurrence_chunks import Inputs, Segment, by_head, multiply
from pynative.kernels.host.unit_lower import below_diagonal


def _dots(x: Array, y: Array) -> Array:
    """Products of x and y [m, C, r, e] summed over e, [m, C, r]."""
    result: Array = np.einsum("mcre,mcre->mcr", x, y)
    return result


def _of_decays(reading: Array, writing: Array, between: Array) -> Array:
    """The gradient [m, C, r] of log decays, from gradients of terms times these terms' decay.

    reading [m, C, r]: terms decayed from the chunk's start up to a token; writing: from behind a token to the chunk's
    end; between [m, r, C, C]: from behind the second token up to the first. Each is added where it acts: differences of
    sums up to both ends would lose digits.
    """
    size = reading.shape[1]
    result: Array = np.cumsum(reading[:, ::-1], axis=1)[:, ::-1].copy()
    result[:, 1:] += np.cumsum(writing, axis=1)[:, :-1]
    up_to = np.empty_like(between)
    ENGINE.matmul(below_diagonal(size, 0).T[None, None], between, up_to)
    result += np.einsum("mrij,ij->mir", up_to, below_diagonal(size, -1))
    return result


class SegmentGradients:
    """The gradients within a segment of a linear recurrence, from dout [m, C, r, e], that of its result, and dstate
    [d, r, e], that of the state behind it. The segment's `forward` must have been called."""

    def __init__(self, segment: Segment, dout: Array, dstate: Array) -> None:
        self.segment, self.dout = segment, dout
        (qk, v, _, _), chunks = segment.inputs, len(dout)
        self.dnew = np.empty(v.shape, np.float32)
        ENGINE.matmul(segment.scores.swapaxes(2, 3), by_head(dout), by_head(self.dnew))
        self.dreads = np.empty_like(segment.reads)
        """Gradient [m, p, C, r, e] of q S and k S."""
        np.multiply(segment.decayed, dout, out=self.dreads[:, 0])
        self.drows = np.empty(v.shape, np.float32) if segment.delta else self.dnew
        """Gradient [m, C, r, e] of the rows that the inverse multiplies."""
        self.written = np.empty(v.shape, np.float32)
        """Keys times the gradient of the state behind their chunk, [m, C, r, e]."""
        self.dstates = np.empty_like(segment.states)
        self.dstates[-1] = dstate.reshape(segment.states[-1].shape)
        flat_reads = self.dreads.reshape(chunks, -1, segment.ends.shape[1])
        keys = qk[:, : segment.parts].reshape(chunks, -1, qk.shape[3])
        for chunk in reversed(range(chunks)):
            if segment.delta:
                self._through_inverse(chunk)
            np.multiply(self.dstates[chunk + 1], segment.ends[chunk], out=self.dstates[chunk])
            multiply(keys[chunk].T, flat_reads[chunk], self.dstates[chunk], accumulate=True)
        if not segment.delta:
            ENGINE.matmul(qk[:, 1], self.dstates[1:], self.written.reshape(chunks, v.shape[1], -1))
            self.dnew += segment.left * self.written
        self.dstate = self.dstates[0].reshape(dstate.shape)
        """Gradient [d, r, e] of the state before the segment."""

    def _through_inverse(self, chunk: int) -> None:
        """Fill a chunk's gradients of `new`, of the rows that the inverse multiplies, and of what these read of the
        state (k S)."""
        segment, dnew, drows = self.segment, self.dnew[chunk], self.drows[chunk]
        written = self.written[chunk]
        multiply(segment.inputs.qk[chunk, 1], self.dstates[chunk + 1], written.reshape(len(written), -1))
        dnew += segment.left[chunk] * written
        ENGINE.matmul(segment.inverse[chunk].swapaxes(1, 2), by_head(dnew), by_head(drows))
        np.multiply(drows, -segment.erasing[chunk], out=self.dreads[chunk, 1])

    def fill(self, gradients: Inputs) -> None:
        """Write the gradients of the segment's inputs into `gradients`."""
        segment, drows = self.segment, self.drows
        (qk, v, _, _), reads = segment.inputs, segment.reads
        np.multiply(segment.rate, drows, out=gradients.v)
        gradients.rate[:] = _dots(drows, v)
        reading = segment.decayed[..., 0] * _dots(self.dout, reads[:, 0])
        writing = segment.left[..., 0] * _dots(segment.new, self.written)
        states = (x.reshape(len(v), -1, *v.shape[2:]) for x in (self.dstates[1:], segment.states[:-1]))
        through = segment.decayed[:, -1:, :, 0] * np.einsum("mdre,mdre->mr", *states)[:, None]
        self._of_states(gradients.qk)
        dscores = np.empty_like(segment.scores)
        ENGINE.matmul(by_head(self.dout), by_head(segment.new).swapaxes(2, 3), dscores)
        of_scores = dscores * segment.scores
        dscores *= segment.between
        of_products = dscores.sum(1)  # of q k^T
        ENGINE.matmul(of_products, qk[:, 1], gradients.qk[:, 0], accumulate=True)
        ENGINE.matmul(of_products.swapaxes(1, 2), qk[:, 0], gradients.qk[:, 1], accumulate=True)
        if segment.delta:
            erased = _dots(drows, reads[:, 1])
            reading -= segment.erasing[..., 0] * erased
            gradients.rate[:] -= segment.decayed[..., 0] * erased
            of_keys = self._of_overlaps(of_scores, gradients.rate)
            ENGINE.matmul(of_keys + of_keys.swapaxes(1, 2), qk[:, 1], gradients.qk[:, 1], accumulate=True)
        np.add(through, _of_decays(reading, writing, of_scores), out=gradients.log_decay)

    def _of_states(self, dqk: Array) -> None:
        """Fill dqk [m, 2, C, d] with the part of queries' and keys' gradients that comes through the states before and
        behind each chunk."""
        segment, chunks = self.segment, len(dqk)
        before, behind = (x.swapaxes(1, 2) for x in (segment.states[:-1], self.dstates[1:]))
        parts = dqk[:, : segment.parts].reshape(chunks, -1, dqk.shape[3])
        ENGINE.matmul(self.dreads.reshape(chunks, -1, before.shape[1]), before, parts)
        placed = segment.placed.reshape(chunks, -1, before.shape[1])
        ENGINE.matmul(placed, behind, dqk[:, 1], accumulate=segment.delta)

    def _of_overlaps(self, of_scores: Array, drate: Array) -> Array:
        """Add the part of the overlaps w L k k^T to the gradients of decays (of_scores) and of rates (drate); the
        gradient of k k^T, [m, C, C]."""
        segment = self.segment
        doverlaps = np.empty_like(segment.overlaps)
        ENGINE.matmul(by_head(self.drows), by_head(segment.new).swapaxes(2, 3), doverlaps)
        of_overlaps = doverlaps * segment.overlaps
        drate -= np.moveaxis(of_overlaps.sum(-1), 1, 2)
        of_overlaps *= segment.rates
        of_scores -= of_overlaps
        doverlaps *= segment.between
        doverlaps *= segment.rates
        doverlaps *= below_diagonal(doverlaps.shape[-1], -1)
        result: Array = doverlaps.sum(1)
        return np.negative(result, out=result)
