"""The rows that travel when tokens go to the ranks of their experts, as plain numbers.

T tokens of a rank, k choices of each, E experts, m experts of a rank, n ranks of a group, r rows. A row is a token's
hidden state, or a choice's weight, on its way to one expert, and -1 in place of a row's number stands for none.
"""

from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array

NONE = -1


class Copies(NamedTuple):
    """Rows copied into a list of r rows: `sources` [r], the row that each row of the list is a copy of, -1 for zeros,
    and `places` [rows, copies], the places of each row's copies in the list, -1 for none: the transpose of copying, a
    sum over a row's copies, needs those."""

    sources: Array
    """int32 [r]: the row that each row of the list is a copy of, -1 for a row of zeros."""
    places: Array
    """int32 [rows, copies]: the places in the list where each row's copies stand, -1 for none."""

    @staticmethod
    def of(sources: Array, rows: int, most: int) -> "Copies":
        """The copies that make a list of r rows: row i of it is a copy of row sources[i], or zeros for -1. rows: the
        number of rows to copy from; most: the most copies that one of these has, at least 1."""
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
        """The same list as copies of fewer rows: rows i `times` ... (i + 1) `times` - 1, such as the k choices of a
        token, count as one row i."""
        return Copies(self.sources // times, self.places.reshape(-1, times * self.places.shape[1]))

    @property
    def undone(self) -> "Copies":
        """The inverse copies, from the list to the rows, if no row is copied more than once: zeros of the list are
        copied to no row, and a row that is not copied becomes zeros."""
        return Copies(self.places[:, 0], self.sources[:, None])


class SortedChoices(NamedTuple):
    """Choices (pairs of a token and one of its k experts), sorted by expert: `choices` [r], their numbers, which are
    token x k + j for a token's expert j, from 0, or -1 for padding, and `counts`, the rows of each expert."""

    choices: Array
    """[r]: numbers of choices, token x k + j for a token's expert j, from 0: all of the first expert, then all of the
    next, each in the tokens' order; -1 for a row that is padding."""
    counts: Array
    """int64 [E]: the number of rows of each expert; or [m] of some neighbouring experts."""


def sorted_by_expert(experts: Array, num_experts: int, rows: Array | None = None) -> SortedChoices:
    """The choices sorted by expert. experts [T, k], -1 where a choice was dropped, which is left out. rows [E]: the
    number of rows of each expert, not below that of its choices, which -1 fills up; None: a row for each choice.

    Numbers of fewer than 65536 experts are sorted as integers of 8 or 16 bits, which is faster.
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
    """Values sorted by expert, counts [E] of each, padded with -1 to rows [E] of each."""
    padded = np.full(rows.sum(), NONE, values.dtype)
    padded[np.arange(len(values)) + np.repeat(_starts(rows) - _starts(counts), counts)] = values
    return padded


def one_row_at_least(counts: Array) -> tuple[Copies, Array]:
    """The copies that give a row of zeros to every expert that has no row, and the number of rows of each expert
    afterwards [E]. counts [E]: the number before; rows are sorted by expert."""
    rows, filled = int(counts.sum()), np.maximum(counts, 1)
    return Copies.of(_padded(np.arange(rows), counts, filled), rows, 1), filled


def _starts(counts: Array) -> Array:
    return np.cumsum(counts) - counts


def of_experts(chosen: SortedChoices, first: int, count: int) -> SortedChoices:
    """The choices for experts first ... first + count - 1 alone; its `counts` are those experts' [count]."""
    start, counts = chosen.counts[:first].sum(), chosen.counts[first : first + count]
    return SortedChoices(chosen.choices[start : start + counts.sum()], counts)


class Sent(NamedTuple):
    """The rows that a rank sends to the ranks of its group, itself included: the numbers of their choices [r], receiver
    after receiver, and the number of rows for each expert of each receiver [n, m]."""

    choices: Array
    """[r]: numbers of choices in the order in which their rows are sent, receiver after receiver; -1 for padding."""
    counts: Array
    """int64 [n, m]: the number of rows for each expert of each receiving rank."""


def addressed(chosen: SortedChoices, ranks: int, shards: int) -> Sent:
    """The rows that a rank sends to the `ranks` ranks of a group. Each run of `shards` neighbours has shards of the
    same experts, and each rank of the run gets the rows of all choices of these experts."""
    counts = chosen.counts.reshape(ranks // shards, -1).repeat(shards, axis=0)
    if shards == 1:
        return Sent(chosen.choices, counts)
    of_owner = np.split(chosen.choices, np.cumsum(counts[::shards].sum(1))[:-1])
    return Sent(np.concatenate([rows for rows in of_owner for _ in range(shards)]), counts)


def by_expert(received: Array) -> Array:
    """The order, int32 [r], that sorts received rows by expert: they come rank by rank, and from each rank expert by
    expert.

    received [sending rank, own expert]: the number of rows from each rank for each of this rank's experts.
    """
    lengths = received.T.reshape(-1)
    starts = (np.cumsum(received).reshape(received.shape) - received).T.reshape(-1)
    return np.asarray((np.arange(lengths.sum()) + np.repeat(starts - _starts(lengths), lengths)).astype(np.int32))


def inverse(order: Array) -> Array:
    """The inverse of the permutation `order` [r], in its type: inverse(order)[order[i]] is i."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order), dtype=order.dtype)
    return back
