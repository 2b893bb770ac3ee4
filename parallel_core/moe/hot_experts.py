"""Hot experts, which every rank computes for its own tokens, and the number of rows that each expert takes, as plain
numbers.

The H experts with most tokens are hot: every expert-parallel rank has a copy of them, so that their tokens do not
travel. The others are cold: they stay with their owner, and of an expert's capacity C they have the share c.
"""

from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array

Hot = tuple[int, ...]
"""Numbers of experts, ascending."""


def first_hot(count: int) -> Hot:
    """The first hot experts, before the router's loads are known: experts 0 ... H-1."""
    return tuple(range(count))


def hottest(tokens: Array, count: int) -> Hot:
    """The experts that got most of tokens [E]; of equal ones the first."""
    return tuple(sorted(np.argsort(-tokens, kind="stable")[:count].tolist()))


def is_revised(step: int, update_step: int) -> bool:
    """Whether the hot experts are chosen anew at the end of a step (from 1): at powers of two up to `update_step`, and
    at its multiples."""
    is_power_of_two = step & (step - 1) == 0
    return (is_power_of_two and step <= update_step) or step % update_step == 0


def capacities(capacity: int, cold_share: float, hot: Hot, experts: int) -> Array:
    """int64 [E]: rows that each expert takes: C if it is hot, else int(C c)."""
    rows = np.full(experts, int(capacity * cold_share))
    rows[list(hot)] = capacity
    return rows


class Slots(NamedTuple):
    """Destinations of a rank's tokens by expert: slots of all owners, one owner's after the other's.

    An owner's slots are its own E/e experts and then, of S = E/e + H, one for a copy of each hot expert.
    """

    number: Array
    """int32 [E]: the slot of each expert."""
    total: int
    """e S."""

    @classmethod
    def plain(cls, experts: int) -> "Slots":
        """The plan without copies: the experts themselves."""
        return cls(np.arange(experts, dtype=np.int32), experts)

    @classmethod
    def with_copies(cls, hot: Hot, experts: int, owners: int, own: int) -> "Slots":
        """Tokens of owner `own` stay with it for all hot experts, its own included."""
        own_experts = experts // owners
        each, expert = own_experts + len(hot), np.arange(experts)
        number = expert // own_experts * each + expert % own_experts
        number[list(hot)] = own * each + own_experts + np.arange(len(hot))
        return cls(number.astype(np.int32), owners * each)

    @property
    def has_copies(self) -> bool:
        """Whether there are slots for copies."""
        return self.total > len(self.number)

    def of(self, experts: Array) -> Array:
        """The slots of experts; -1 stays."""
        return self.number[experts] if experts.min(initial=0) >= 0 else np.where(experts < 0, -1, self.number[experts])

    def rows(self, of_experts: Array) -> Array:
        """int64 [e S]: rows for each slot from rows [E] for each expert."""
        return np.bincount(self.number, of_experts, self.total).astype(np.int64)
