"""A training step's batch on one rank, as numpy arrays: cut into micro-batches, and its tokens counted.

A batch is a dict of arrays whose first axis has all rows of the step, micro-batch after micro-batch (an attention mask
may have one row for all of a single micro-batch). A micro-batch is its rows, of the entries that a stage of the
pipeline reads, with sequences sharded over context parallelism; how many of its tokens count is known from the whole
sequences. b rows, s length of a sequence.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parallel_core.context import ContextLayout, Ranges
from parallel_core.numerics.dtypes import Array

ENTRIES = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")
"""Names of Megatron's entries, in the order in which its scripts unpack them."""
TOKENS, LABELS, LOSS_MASK, ATTENTION_MASK, POSITION_IDS = ENTRIES
DOCUMENT_STARTS = "document_starts"
"""Name of the entry of documents, int32 [b, s]: the number of the first position of each position's document; beside it
the order is causal (`parallel_core.batch.documents`)."""
ROUTED_EXPERTS = "routed_experts"
"""Name of the entry of given experts, int32 [b, s, L, k]: the k experts of each token in each of the L layers with
experts; -1: the router chooses."""
LENGTHS = "lengths"
"""Name of the entry of lengths, int32 [b]: positions of a row [s] before its padding. Models don't read it: each
micro-batch is cut to its longest row."""
QUERY_AXES = {ATTENTION_MASK: 2, DOCUMENT_STARTS: 1}
"""Name of an entry that says which keys a query sees -> its axis of queries."""
_POSITION_AXES = {ATTENTION_MASK: (2, 3), ROUTED_EXPERTS: (1,)}
"""Name of an entry with more axes than [b, s] -> its axes of positions."""


@dataclass(frozen=True)
class BatchEntry:
    """One array [b, ...] of a batch. whole: the array with whole sequences, where `array` has a context-parallel rank's
    shards of them. row_tokens: of loss mask and labels, for each row, the number of tokens that count."""

    array: Array
    whole: Array | None = None
    """The array with whole sequences, where `array` has a context-parallel rank's shards of them; None: `array` is
    whole."""
    row_tokens: Array | None = None
    """The number of tokens of each row's whole sequence that count, float64 [b]: of a loss mask its sum, of labels all;
    None for any other entry."""

    @classmethod
    def of(cls, name: str, array: Array) -> "BatchEntry":
        """The entry `name`, of an array with whole sequences. Of the loss mask as many tokens count as its sum says, of
        the labels all; any other entry has no number of tokens."""
        if name == LOSS_MASK:
            return cls(array, row_tokens=array.sum(tuple(range(1, array.ndim)), dtype=np.float64))
        if name == LABELS:
            return cls(array, row_tokens=np.full(len(array), math.prod(array.shape[1:]), np.float64))
        return cls(array)

    @property
    def sequences(self) -> Array:
        """The array of whole sequences (`whole`) where `array` has shards of it, else `array`."""
        return self.array if self.whole is None else self.whole

    def rows(self, start: int, stop: int) -> "BatchEntry":
        """The entry of rows start..stop-1."""
        whole, tokens = (None if part is None else part[start:stop] for part in (self.whole, self.row_tokens))
        return replace(self, array=self.array[start:stop], whole=whole, row_tokens=tokens)

    def positions(self, name: str, stop: int) -> "BatchEntry":
        """The entry, called `name`, with the positions before `stop` alone: cut are axes 2 and 3 of "attention_mask",
        axis 1 of "routed_experts", and axis 1 of any other array of two axes, which is taken for [b, s]. Any other
        entry stays, and so does a context-parallel shard. The number of tokens that count stays: what is cut off is
        taken for padding."""
        if self.whole is not None:
            return self
        axes = _POSITION_AXES.get(name, (1,) if self.array.ndim == 2 else ())
        kept = tuple(slice(stop if axis in axes else None) for axis in range(self.array.ndim))
        return replace(self, array=self.array[kept])

    def with_rows(self, rows: int, repeats: bool = False) -> "BatchEntry":
        """The entry with new rows behind its own, `rows` altogether, a number not below that of its own: zeros, or
        (repeats) copies of its last row, if it has one."""

        def filled(part: Array) -> Array:
            made = np.zeros((rows - len(part), *part.shape[1:]), part.dtype)
            if repeats and len(part):
                made[:] = part[-1]
            return np.concatenate([part, made])

        whole, tokens = (None if part is None else filled(part) for part in (self.whole, self.row_tokens))
        return replace(self, array=filled(self.array), whole=whole, row_tokens=tokens)

    @property
    def tokens(self) -> float | None:
        """The number of tokens that count, all rows together: the sum of `row_tokens`; None where that is None."""
        return None if self.row_tokens is None else float(self.row_tokens.sum())


def filled_up(batch: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A copy of the batch with rows of zeros behind those of each `BatchEntry`, `rows` altogether; an entry that has as
    many or more, and anything else, stays.

    The new rows of an attention mask are copies of its last one; a mask of one row beside an entry with more is that of
    all rows, and stays. No token of the new rows counts (`tokens`): if labels are filled up and the batch has no loss
    mask, or None for one, it gets a mask that is 1 in the old rows and 0 in the new ones.
    """
    entries = {name: entry for name, entry in batch.items() if isinstance(entry, BatchEntry)}
    short = {name: entry for name, entry in entries.items() if len(entry.array) < rows}
    most = max((len(entry.array) for entry in entries.values()), default=0)
    if ATTENTION_MASK in short and len(short[ATTENTION_MASK].array) == 1 < most:
        del short[ATTENTION_MASK]
    if LABELS in short and batch.get(LOSS_MASK) is None:
        short[LOSS_MASK] = BatchEntry.of(LOSS_MASK, np.ones(short[LABELS].sequences.shape, np.float32))
    return {**batch, **{name: entry.with_rows(rows, name == ATTENTION_MASK) for name, entry in short.items()}}


def tokens_ahead(sequences: Array, places: int) -> Array:
    """Sequences [b, s] whose position i has the element of position i + places, 0 beyond the end."""
    ahead = np.zeros_like(sequences)
    kept = max(sequences.shape[1] - places, 0)
    ahead[:, :kept] = sequences[:, sequences.shape[1] - kept :]
    return ahead


@dataclass(frozen=True)
class ContextShard:
    """The part of whole sequences that one context-parallel rank reads."""

    layout: ContextLayout
    rank: int

    def sequence(self, array: Array, name: str = "array") -> Array:
        """The rank's positions of whole sequences [b, s, ...]. name: the entry's, for the error. Raises ValueError
        unless s is a multiple of the layout's `divisor`."""
        length = self._length(array, name, 1, self.layout.divisor)
        return _take(array, self.layout.positions(length, self.rank), 1)

    def queries(self, array: Array, name: str = ATTENTION_MASK) -> Array:
        """Attention mask [b or 1, 1, s, s] or document starts [b, s] -> its part for the queries that attend on this
        rank, of a mask with all keys. name: the entry's, which tells the axis of queries.

        With a ring these are the queries of the rank's place in the ring; with Ulysses alone all queries, since a rank
        then attends with whole sequences and some of the heads. Raises ValueError unless s is a multiple of 2r in a
        ring of r > 1 ranks.
        """
        axis, ring = QUERY_AXES[name], self.layout.ring
        length = self._length(array, name, axis, 2 * ring if ring > 1 else 1)
        return _take(array, self.layout.ring_positions(length, self.rank // self.layout.ulysses), axis)

    def _length(self, array: Array, name: str, axis: int, divisor: int) -> int:
        """The length of the sequences along an axis of the entry `name`. Raises ValueError unless it is a multiple of
        the divisor."""
        length: int = array.shape[axis]
        if length % divisor:
            raise ValueError(
                f"{name!r} has sequences of {length}: must be a multiple of {divisor} with --context-parallel-size "
                f"{self.layout.size}; pad them or change the size"
            )
        return length

    def entry(self, name: str, entry: Any) -> Any:
        """A `BatchEntry` of whole sequences -> one of this rank's shards: `queries` of an attention mask and of
        document starts, `sequence` of any other array of two axes or more, which is taken for [b, s, ...]. With one
        context-parallel rank all stay; else an entry that is sharded already, one with fewer axes, and a value that is
        no `BatchEntry` stay. Raises ValueError as `sequence` and `queries`."""
        if (
            self.layout.size == 1
            or not isinstance(entry, BatchEntry)
            or entry.whole is not None
            or entry.array.ndim < 2
        ):
            return entry
        cut_out = self.queries if name in QUERY_AXES else self.sequence
        return replace(entry, array=cut_out(entry.array, name), whole=entry.array)


def _take(array: Array, positions: Ranges, axis: int) -> Array:
    """The elements of `array` at these positions along an axis."""
    before = (slice(None),) * axis
    places = [(*before, slice(run.start, run.stop)) for run in positions]
    return np.concatenate([array[place] for place in places], axis)


class StepBatch:
    """All micro-batches of a step on one rank.

    Args:
        entries: arrays as `BatchEntry`; anything else goes to every micro-batch as it is.
        micro_batches: their number; divides the rows of each array (`BatchRules`).
        context: the context-parallel rank that reads them.
    """

    def __init__(self, entries: Mapping[str, Any], micro_batches: int, context: ContextShard) -> None:
        self.entries, self.micro_batches, self.context = entries, micro_batches, context

    def micro_batch(self, number: int, without: Collection[str] = ()) -> dict[str, Any]:
        """The entries of micro-batch `number` (from 0), sharded for this rank, without those named in `without` and
        without "lengths". Where "lengths" is a `BatchEntry`, each other one is first cut to the greatest length in the
        micro-batch (`BatchEntry.positions`), unless that is 0. Raises as `ContextShard.entry`."""
        wanted = {name: entry for name, entry in self.entries.items() if name not in (*without, LENGTHS)}
        rows = {name: self._without_padding(name, self._rows(entry, number), number) for name, entry in wanted.items()}
        return {name: self.context.entry(name, entry) for name, entry in rows.items()}

    def tokens(self, number: int) -> float:
        """The number of tokens in micro-batch `number` that count, in whole sequences: the sum of its loss mask or,
        without one, the number of its labels; 1 if it has neither."""
        counted = self.entries.get(LOSS_MASK) or self.entries.get(LABELS)
        tokens = self._rows(counted, number).tokens if isinstance(counted, BatchEntry) else None
        return 1.0 if tokens is None else tokens

    def _without_padding(self, name: str, entry: Any, number: int) -> Any:
        """A micro-batch's entry cut to its longest row (`LENGTHS`); where all rows are filled up, with length 0, it
        stays."""
        lengths = self.entries.get(LENGTHS)
        if not isinstance(lengths, BatchEntry) or not isinstance(entry, BatchEntry):
            return entry
        longest = int(self._rows(lengths, number).array.max())
        return entry.positions(name, longest) if longest else entry

    def _rows(self, entry: Any, number: int) -> Any:
        if not isinstance(entry, BatchEntry):
            return entry
        size = len(entry.array) // self.micro_batches
        return entry.rows(number * size, (number + 1) * size)
