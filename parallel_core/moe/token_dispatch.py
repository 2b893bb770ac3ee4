"""The rows that travel when tokens go to the ranks of their experts, as plain numbers.

T tokens of a rank, k choices of each, E experts, m experts of a rank, n ranks of a group, r rows. A row is a token's
hidden state on its way to one expert, and -1 in place of a row's number stands for none.
"""

from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array

NONE = -1


class Copies(NamedTuple):
    """Rows copied into a list, and where the copies of each are: to sum those is the transpose of copying."""

    sources: Array
    """int32 [r]: the row that each row of the list is a copy of, -1 for a row of zeros."""
    places: Array
    """int32 [rows, copies]: where in the list each row's copies are, -1 for a copy that there is not."""

    @staticmethod
    def of(sources: Array, rows: int, most: int) -> "Copies":
        """The plan for `rows` rows, none of which is copied more than `most` times."""
        at = np.flatnonzero(sources != NONE)
        copied: Array = sources[at]
        number: Array | int = 0
        if most > 1:
            order = np.argsort(copied, kind="stable")
            at, copied = at[order], copied[order]
            number = np.arange(len(at)) - np.searchsorted(copied, copied)
        places = np.full((rows, most), NONE, np.int32)
        places[copied, number] = at
        return Copies(sources.astype(np.int32), places)

    def of_rows(self, times: int) -> "Copies":
        """The copies of rows of which each is made of `times` rows after one another."""
        return Copies(self.sources // times, self.places.reshape(-1, times * self.places.shape[1]))

    @property
    def undone(self) -> "Copies":
        """The inverse copies, of copies that use each row exactly once."""
        return Copies(self.places[:, 0], self.sources[:, None])


class SortedChoices(NamedTuple):
    """The choices of a rank's tokens, by expert."""

    choices: Array
    """[r]: numbers of choices (token k + j), all of expert 0, then all of expert 1, ..., each in the tokens' order."""
    counts: Array
    """int64 [E]: choices of each expert."""


def sorted_by_expert(experts: Array, num_experts: int, rows: Array | None = None) -> SortedChoices:
    """experts [T, k], -1 where a choice was dropped; with `rows` [E] each expert has so many rows, some of them -1.

    The sort is stable and of small integers, for which numpy counts instead of comparing.
    """
    flat = experts.reshape(-1)
    counts = np.bincount(flat + 1, minlength=num_experts + 1)
    key = (flat + 1).astype(np.uint8 if num_experts < 256 else np.uint16 if num_experts < 65536 else np.int32)
    choices = np.argsort(key, kind="stable")[counts[0] :]
    counts = counts[1:]
    if rows is None:
        return SortedChoices(choices, counts)
    return SortedChoices(_padded(choices, counts, rows), rows)


def _padded(values: Array, counts: Array, rows: Array) -> Array:
    """Values of so many rows of each expert, counts [E]: -1 behind them where it has more, rows [E]."""
    padded = np.full(rows.sum(), NONE, values.dtype)
    padded[np.arange(len(values)) + np.repeat(_starts(rows) - _starts(counts), counts)] = values
    return padded


def one_row_at_least(counts: Array) -> tuple[Copies, Array]:
    """Rows of each expert, counts [E] -> the same rows with one of zeros for every expert that has none, and their
    numbers [E]."""
    rows, filled = int(counts.sum()), np.maximum(counts, 1)
    return Copies.of(_padded(np.arange(rows), counts, filled), rows, 1), filled


def _starts(counts: Array) -> Array:
    return np.cumsum(counts) - counts


def of_experts(chosen: SortedChoices, first: int, count: int) -> SortedChoices:
    """The rows for experts first ... first + count - 1 alone."""
    start, counts = chosen.counts[:first].sum(), chosen.counts[first : first + count]
    return SortedChoices(chosen.choices[start : start + counts.sum()], counts)


class Sent(NamedTuple):
    """The rows that a rank sends to the others of its group."""

    choices: Array
    """[r]: numbers of choices in the order in which their rows leave."""
    counts: Array
    """int64 [n, m]: rows for each expert of each rank."""


def addressed(chosen: SortedChoices, ranks: int, shards: int) -> Sent:
    """The rows for each rank of a group of `ranks`, of which `shards` at a time, neighbours, share the same experts:
    each of those gets a row of every choice."""
    counts = chosen.counts.reshape(ranks // shards, -1).repeat(shards, axis=0)
    if shards == 1:
        return Sent(chosen.choices, counts)
    of_owner = np.split(chosen.choices, np.cumsum(counts[::shards].sum(1))[:-1])
    return Sent(np.concatenate([rows for rows in of_owner for _ in range(shards)]), counts)


def by_expert(received: Array) -> Array:
    """int32 [r]: the rows that came, rank by rank and of each rank expert by expert, in the order of their experts.

    received [n, m]: rows for each of this rank's experts from each rank.
    """
    lengths = received.T.reshape(-1)
    starts = (np.cumsum(received).reshape(received.shape) - received).T.reshape(-1)
    return np.asarray((np.arange(lengths.sum()) + np.repeat(starts - _starts(lengths), lengths)).astype(np.int32))


def inverse(order: Array) -> Array:
    """The permutation that undoes one."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order), dtype=order.dtype)
    return back
