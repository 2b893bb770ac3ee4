"""Hot experts, which every expert-parallel rank computes for its own tokens, and the rows that each expert takes, as
plain numbers.

Of E experts H are hot: at first 0 ... H - 1, later those that got most tokens in an earlier step. Each of several
expert-parallel ranks has a copy of them. The others are cold: only their owner has them, and their capacity is a share
of a hot expert's.
"""

from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array

Hot = tuple[int, ...]
"""The numbers of the hot experts among all E, ascending."""


def first_hot(count: int) -> Hot:
    """The hot experts where none have been chosen by numbers of tokens: experts 0 ... `count` - 1."""
    return tuple(range(count))


def hottest(tokens: Array, count: int) -> Hot:
    """The numbers, ascending, of the `count` experts with the most tokens; of equal ones those with the lower number.
    tokens [E]: the number of tokens of each expert, in a type with a sign."""
    return tuple(sorted(np.argsort(-tokens, kind="stable")[:count].tolist()))


def is_revised(step: int, update_step: int) -> bool:
    """Whether hot experts are chosen anew after the update of `step`, from 1: it is a power of two up to `update_step`,
    or a multiple of that."""
    is_power_of_two = step & (step - 1) == 0
    return (is_power_of_two and step <= update_step) or step % update_step == 0


def capacities(capacity: int, cold_share: float, hot: Hot, experts: int) -> Array:
    """The capacity of each expert, int64 [E]: `capacity` for a hot one, int(`capacity` x `cold_share`) for a cold one.
    experts: E."""
    rows = np.full(experts, int(capacity * cold_share))
    rows[list(hot)] = capacity
    return rows


class Slots(NamedTuple):
    """The destinations of one rank's tokens, as numbers of slots: `number` [E] is the slot for each expert's tokens,
    `total` the number of slots of all owners of experts, one owner's after another's. With copies of H hot experts on
    each of e owners, an owner has E/e + H slots: its own E/e experts, then a copy of each hot expert."""

    number: Array
    """int32 [E]: the slot to which this rank sends tokens of each expert."""
    total: int
    """The number of slots of all owners."""

    @classmethod
    def plain(cls, experts: int) -> "Slots":
        """The slots without copies: slot i is expert i."""
        return cls(np.arange(experts, dtype=np.int32), experts)

    @classmethod
    def with_copies(cls, hot: Hot, experts: int, owners: int, own: int) -> "Slots":
        """The slots for tokens of the owner of number `own`, with copies of the experts `hot` on each of the `owners`:
        its tokens for any hot expert go to its own copy, also those for one that it owns. experts: E."""
        own_experts = experts // owners
        each, expert = own_experts + len(hot), np.arange(experts)
        number = expert // own_experts * each + expert % own_experts
        number[list(hot)] = own * each + own_experts + np.arange(len(hot))
        return cls(number.astype(np.int32), owners * each)

    @property
    def has_copies(self) -> bool:
        """Whether there are slots for copies of hot experts."""
        return self.total > len(self.number)

    def of(self, experts: Array) -> Array:
        """The slots of these experts, in the same shape; -1 (no expert) stays -1."""
        return self.number[experts] if experts.min(initial=0) >= 0 else np.where(experts < 0, -1, self.number[experts])

    def rows(self, of_experts: Array) -> Array:
        """The number of rows for each slot, int64 [total], from those for each expert, `of_experts` [E]."""
        return np.bincount(self.number, of_experts, self.total).astype(np.int64)
