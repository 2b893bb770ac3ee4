"""Linear attention as a recurrence: one state a head instead of keys and values of all earlier tokens.

With S [d, e] a head's state, zero before the sequence, and of each token query q, key k, value v, decay exp(g) and rate
r,

    S <- exp(g) S,    S <- S + k (r (v - S^T k))^T,    out = scale S^T q

which is the gated delta rule (Yang et al., "Gated Delta Networks", 2024); without `delta`, S <- S + k (r v)^T: the
state space of Mamba-2 (Dao and Gu, 2024) and lightning attention (MiniMax-01, 2025). Computed a chunk of tokens at a
time it is products of matrices, and linear in the length of the sequence.
"""

from dataclasses import dataclass

CHUNK = 64
"""The most tokens of a chunk; the scores between all tokens of a chunk exist at once."""

SEGMENT = 512
"""Tokens from one state that the host's kernel keeps for the backward to the next."""

LENGTH_EPSILON = 1e-6
"""Added to the sum of squares of a query, or of a key, before the root, where it is divided by its length (`unit`)."""


@dataclass(frozen=True)
class RecurrenceForm:
    """The variant of linear attention's recurrence that a layer computes: S <- decay S, then S <- S + k (r v)^T or,
    with `delta`, S <- S + k (r (v - S^T k))^T, and out = scale S^T q, with S a head's state, and of each token q the
    query, k the key, v the value, r the rate. With `unit` q and k are L2-normalised first."""

    scale: float = 1.0
    """Factor of the values read from the state."""
    delta: bool = False
    """Whether S^T k is subtracted from v before the update: the delta rule."""
    unit: bool = False
    """Whether queries and keys are divided by their lengths first."""


def segments(length: int) -> int:
    """The number of a head's states that the host's kernel keeps for the backward of a sequence of `length` tokens: one
    for every SEGMENT (512) tokens, rounded up."""
    return -(-length // SEGMENT)
