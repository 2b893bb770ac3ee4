"""Linear attention as a recurrence: one state a head instead of keys and values of all earlier tokens.

With S [d, e] a head's state, zero at first, and of each token query q, key k, value v, decay exp(g) and rate r

    S <- exp(g) S,    S <- S + k (r (v - S^T k))^T,    out = scale S^T q

which is the gated delta rule (Yang et al., "Gated Delta Networks", 2024); without `delta`, S <- S + k (r v)^T: the
state space of Mamba-2 (Dao and Gu, 2024) and lightning attention (MiniMax-01, 2025). Computed a chunk of tokens at a
time it is products of matrices, and linear in the length of the sequence.
"""

from dataclasses import dataclass

CHUNK = 64
"""Tokens of a chunk, whose scores with each other exist at once."""

SEGMENT = 512
"""Tokens between two states that are kept for the backward."""

LENGTH_EPSILON = 1e-6
"""Is added to the squares of a query or a key before the root, where they are divided by their length."""


@dataclass(frozen=True)
class RecurrenceForm:
    """The form of a recurrence."""

    scale: float = 1.0
    """Factor of the values read from the state."""
    delta: bool = False
    """Whether the value that the state gives for a key is subtracted from the key's value."""
    unit: bool = False
    """Queries and keys are divided by their lengths first."""


def segments(length: int) -> int:
    """The number of states of a sequence that are kept."""
    return -(-length // SEGMENT)
