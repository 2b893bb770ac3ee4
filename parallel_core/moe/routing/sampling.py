"""Two experts for each token, sampled (SparseMixer, Liu et al., "Sparse Backpropagation for Mixture-of-Experts
Training", 2023). T tokens, E experts.

Of each expert in turn: those whose logit is further than `jitter` from the best are left out, one is drawn of the
others by their softmax, and its weight is its probability. The gradient is Heun's third-order estimate: a drawn expert
that is not the best has a third of its weight three times out of four.
"""

from dataclasses import dataclass

import numpy as np

from parallel_core.moe.routing.choice import softmax
from parallel_core.numerics.dtypes import Array


@dataclass(frozen=True)
class Noise:
    """Uniform numbers in (0, 1]."""

    draws: Array
    """[2, T, E], for each of the two experts."""
    thirds: Array
    """[2, T]."""


@dataclass(frozen=True)
class Draw:
    """One expert of each token."""

    experts: Array
    """[T]."""
    gates: Array
    """[T, E]: what it was drawn by."""
    multiplier: Array
    """[T]: its probability."""
    weights: Array
    """[T]: what the expert's output is multiplied with."""


def _draw(logits: Array, taken: Array, jitter: float, noise: Noise | None, turn: int) -> Draw:
    """Draw among experts that are not `taken` [T, E]; without noise the best."""
    rows, left = np.arange(len(logits)), np.where(taken, -np.inf, logits)
    highest = left.max(axis=1, keepdims=True)
    far = (highest - logits) / np.maximum(np.abs(logits), highest) > 2 * jitter
    left = np.where(far, -np.inf, left)
    gates = softmax(left)
    gumbel = left if noise is None else left - np.log(-np.log(noise.draws[turn]))
    experts = gumbel.argmax(axis=1)
    multiplier = gates[rows, experts]
    if noise is None:
        return Draw(experts, gates, multiplier, multiplier)
    whole = (experts == gates.argmax(axis=1)) | (noise.thirds[turn] > 0.75)
    return Draw(experts, gates, multiplier, multiplier * np.where(whole, 1.0, 1.0 / 3.0).astype(gates.dtype))


def sample(logits: Array, jitter: float, noise: Noise | None) -> tuple[Draw, Draw]:
    """The first and second expert of each token; without noise, as in an evaluation, the two best."""
    taken = np.zeros(logits.shape, bool)
    first = _draw(logits, taken, jitter, noise, 0)
    taken[np.arange(len(logits)), first.experts] = True
    return first, _draw(logits, taken, jitter, noise, 1)


def sampled_gradient(draw: Draw, gradient: Array) -> Array:
    """[T, E]: the logits' gradient, of that of the weights [T]."""
    upstream = gradient * draw.multiplier
    result = -draw.gates * upstream[:, None]
    result[np.arange(len(upstream)), draw.experts] += upstream
    return np.asarray(result)
