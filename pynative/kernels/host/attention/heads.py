"""Arrays of attention as stacks of heads, and the blocks in which scores are computed.

A *stack* has one query head of every key/value group of every batch entry: [j, s, d], j = b g, a view of [s, b, n, d].
Its heads lie at even distances, in the order of their keys' heads, so that one product takes several of them at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from parallel_core.context import as_array
from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import Scores
from pynative.kernels.dropout import quantized_rate
from pynative.kernels.host.attention.masks import bits_of, columns, limits_of, shown_to, triangle
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import spans
from pynative.memory.arrays import array_of
from pynative.memory.rounding import widened

QUERIES = 128
"""The most queries of a tile. With fewer the overhead of calls shows; with more, more is multiplied above the
diagonal."""

QUERIES_OF_DOCUMENTS = QUERIES // 2
"""Queries of a tile that several documents share, at most: with more, more is multiplied between them than calls
cost."""

KEYS = 512
"""The most keys of a tile; a multiple of QUERIES, so that the diagonal crosses a block's last tile only."""

TILE = 512 * 1024
"""The most scores of a tile, which has as many heads at once as fit. With fewer heads there are more calls of the
engine."""

SHARED = 64 * 1024
"""The number of scores in one tile of queries and keys, over all heads, from which on the heads are cut into an even
number of runs, so that two threads have equal shares."""


def stacks(array: Array, groups: int) -> list[Array]:
    """Heads [s, b, n, d] of g groups, an array without gaps, as n / g views [b g, s, d], the stacks: the i-th has the
    i-th head of every group of every sequence. groups: g."""
    length, batch, heads, size = array.shape
    grouped = array.reshape(length, batch * groups, heads // groups, size)
    return list(grouped.transpose(2, 1, 0, 3))


def row_stacks(statistic: Array, groups: int) -> list[Array]:
    """Row statistics [b, n, s] of g groups, whose heads lie at even distances, as n / g views [b g, s], in the order of
    `stacks`: the i-th has the i-th head of every group of every sequence. groups: g."""
    batch, heads, length = statistic.shape
    return list(statistic.reshape(batch * groups, heads // groups, length).swapaxes(0, 1))


def as_products(array: Array) -> Array:
    """The array in the type that `Engine.product_type` names for its own: itself, or a copy in float32."""
    return array if ENGINE.product_type(array.dtype) == array.dtype else widened(array)


class Heads:
    """Queries [s, b, n, d], keys [s', b, g, d] and values [s', b, g, e] of one type, and the rule and positions of
    their scores; if these are causal, the keys' positions are those of the queries."""

    def __init__(self, q: Array, k: Array, v: Array, scores: Scores) -> None:
        self.scores, self.groups = scores, k.shape[2]
        self.queries = stacks(as_products(q), self.groups)
        (self.keys,), (self.values,) = (stacks(as_products(array), self.groups) for array in (k, v))
        self.dtype, self.query_shape, self.key_shape = self.keys.dtype, q.shape, k.shape
        self.out_shape = (*q.shape[:3], v.shape[3])
        self.kept_scale = 1 / (1 - quantized_rate(scores.dropout_rate))
        self.causal = scores.is_causal
        self.query_positions, self.key_positions = as_array(scores.query_positions), as_array(scores.key_positions)
        self.first_keys = scores.block_first_keys
        self._blocks = self._blocks_of_samples()
        self.spans = self._spans()

    def _blocks_of_samples(self) -> list[list[slice]]:
        """For each sample its blocks of queries; one list for all samples where they have no documents."""
        if self.first_keys is None:
            return [[slice(*span) for span in spans(self.query_shape[0], QUERIES)]]
        return [document_blocks(first_keys, self.query_positions) for first_keys in self.first_keys]

    def blocks(self, span: slice) -> list[slice]:
        """The blocks of queries, as slices, for a run `span` of a stack's heads."""
        return self._blocks[0 if self.first_keys is None else self.sample(span)]

    def sample(self, span: slice) -> int:
        """The number, in the batch, of the sequence to which the first of the heads at `span` of a stack belongs."""
        return int(span.start) // self.groups

    def _spans(self) -> list[slice]:
        """The heads of a stack in runs that are computed together. They depend on the shapes alone."""
        count, parts = len(self.keys), self.query_shape[1] if self.scores.differs_by_sample else 1
        size = self._run_length(count // parts)
        starts = range(0, count, count // parts)
        return [slice(start + a, start + b) for start in starts for a, b in spans(count // parts, size)]

    def _run_length(self, count: int) -> int:
        """The number of heads, of `count`, that make a tile; where the work is enough for two threads, so many that the
        number of runs is even."""
        every = count * min(self.query_shape[0], QUERIES) * min(self.key_shape[0], KEYS)
        runs = -(-every // TILE)
        if every >= SHARED:
            runs += runs % 2
        return -(-count // runs)

    def tile_memory(self) -> Array:
        """New memory that the largest tile fits into: a vector of the type that `as_products` gives."""
        heads = self.spans[0].stop - self.spans[0].start
        return np.empty(heads * min(self.query_shape[0], QUERIES) * min(self.key_shape[0], KEYS), self.dtype)


def document_blocks(first_keys: Array, positions: Array) -> list[slice]:
    """The queries [q] in blocks, as slices: a document's in blocks of its own of at most QUERIES, or several
    neighbouring documents in one of at most QUERIES_OF_DOCUMENTS. first_keys, positions: for each query the position of
    the first key that it sees, and its own."""
    blocks: list[slice] = []
    edges = np.flatnonzero(np.diff(first_keys)) + 1
    for start, stop in pairwise((0, *map(int, edges), len(first_keys))):
        open_start = blocks[-1].start if blocks else start
        if stop - open_start <= QUERIES_OF_DOCUMENTS and first_keys[open_start] == positions[open_start]:
            blocks[-1:] = [slice(open_start, stop)]
        else:
            blocks += [slice(start + a, start + b) for a, b in spans(stop - start, QUERIES)]
    return blocks


@dataclass
class Block:
    """The scores of the queries `rows` for a run `span` of the heads of stack number `stack`, which has one query head
    of every key/value group of every batch entry."""

    heads: Heads
    stack: int
    span: slice
    rows: slice

    def __post_init__(self) -> None:
        self.positions = self.heads.query_positions[self.rows]
        self.queries = self.heads.queries[self.stack][self.span, self.rows]
        self.keys, self.values = self.heads.keys[self.span], self.heads.values[self.span]
        self.first_keys = self._first_keys()
        self._dropout = self._dropout_bits() if self.heads.scores.dropout_rate else None
        self._hidden = self._hidden_scores()

    def tiles(self) -> Iterator[slice]:
        """Slices of at most KEYS keys, which together hold every key that a query of the block sees; the probability of
        the others is exactly 0."""
        visible, first = self.rows.stop if self.heads.causal else len(self.keys[0]), self._first_key()
        even = first - (first - self.rows.start) % QUERIES  # aligned so that the diagonal crosses only the last tile
        edges = ((even + start, even + stop) for start, stop in spans(visible - even, KEYS))
        return (slice(max(start, first), stop) for start, stop in edges if stop > first)

    def _first_key(self) -> int:
        """Index of a key before which no query of the block sees any, by window and documents; 0 with a mask."""
        scores, oldest = self.heads.scores, 0
        if scores.mask is not None:
            return 0
        if scores.form.window is not None:
            oldest = int(np.searchsorted(self.heads.key_positions, self.positions[0] - scores.form.window))
            oldest = oldest // QUERIES * QUERIES
        if self.first_keys is not None:
            oldest = max(oldest, int(np.searchsorted(self.heads.key_positions, self.first_keys[0])))
        return oldest

    def _first_keys(self) -> Array | None:
        """Position of the first key that each of the block's queries sees, [q]; None without documents."""
        of_samples = self.heads.first_keys
        return None if of_samples is None else of_samples[self.heads.sample(self.span), self.rows]

    def _before(self, positions: Array) -> Array | None:
        """Bool [q, k], True for keys at these positions that lie before the query's window or document; None if none
        does."""
        form, hidden = self.heads.scores.form, None
        if not form.sees_all(self.positions, positions):
            hidden = form.before_window(self.positions, positions)
        if self.first_keys is not None and positions[0] < self.first_keys[-1]:
            earlier = positions < self.first_keys[:, None]
            hidden = earlier if hidden is None else hidden | earlier
        return hidden

    def shaped(self, memory: Array, keys: slice) -> Array:
        """A tile [j, k, q] for these keys at the start of `memory`."""
        shape = (len(self.queries), keys.stop - keys.start, self.queries.shape[1])
        return memory[: shape[0] * shape[1] * shape[2]].reshape(shape)

    def limits(self, keys: slice) -> Array | None:
        """Upper limits [1, k, q] of a tile's scores: MASKED_SCORE for keys that were not chosen for the query and, if a
        mask is given, for those that mask, window or documents hide; else infinity. None if neither a mask nor a
        choice of keys is given."""
        return None if self._hidden is None else limits_of(self._hidden[None, :, keys])

    def shown(self, keys: slice) -> Array | None:
        """For a tile an array [k, q]: 0 for keys that were not chosen for the query and, if a mask is given, for those
        that mask, window or documents hide; else all bits set (`bits_of`). None if neither a mask nor a choice of
        keys is given."""
        if self._hidden is None:
            return None
        return bits_of(np.logical_not(self._hidden[:, keys].T), self.keys.itemsize)

    def diagonal(self, keys: slice) -> tuple[slice, Array] | None:
        """(the tile's keys at the diagonal, as a slice of its keys; for these an array [k, q]: all bits set (`bits_of`)
        where the key is not after the query, else 0); None if the tile has none, or scores are not causal."""
        if not self.heads.causal or keys.stop <= self.rows.start:
            return None
        first = self.rows.start - keys.start
        return slice(first, keys.stop - keys.start), triangle(keys.stop - self.rows.start, self.keys.itemsize)

    def near(self, keys: slice) -> Array | None:
        """For a tile an array [k, q]: 0 where the key lies before the query's window or document, else all bits set
        (`bits_of`); None if no key does, or if a mask is given."""
        hidden = None if self.heads.scores.mask is not None else self._before(self.heads.key_positions[keys])
        return None if hidden is None else bits_of(~hidden.T, self.keys.itemsize)

    def bias(self, keys: slice) -> Array | None:
        """ALiBi's bias [j, k, q] of a tile, float32; None without it."""
        scores, groups = self.heads.scores, self.heads.groups
        if not scores.form.has_bias:
            return None
        per_group = len(self.heads.queries)
        numbers = np.arange(self.span.start, self.span.stop) % groups * per_group + self.stack
        distances = self.heads.key_positions[keys, None] - self.positions
        return scores.form.bias([*map(int, scores.head_offset + numbers)], distances)

    def dropout(self, keys: slice) -> Array | None:
        """For a tile an array [j, k, q]: all bits set (`bits_of`) where dropout keeps a probability, else 0; None
        without dropout."""
        return None if self._dropout is None else self._dropout[:, keys]

    def _dropout_bits(self) -> Array:
        per_group, masks = len(self.heads.queries), []
        for index in range(self.span.start, self.span.stop):
            batch, group = divmod(index, self.heads.groups)
            mask = self.heads.scores.dropout_mask(batch, group * per_group + self.stack, self.rows)
            assert mask is not None
            masks.append((mask != 0).T)
        return bits_of(np.stack(masks), self.keys.itemsize)

    def _hidden_scores(self) -> Array | None:
        """Bool [q, k], True for keys that the given mask (with window and documents) hides or the query did not choose;
        None without either."""
        scores, batch, hidden = self.heads.scores, self.heads.sample(self.span), list[Array | None]()
        if scores.chosen is not None:
            chosen = array_of(scores.chosen)[batch, -scores.queries :][self.rows]
            hidden.append(~np.concatenate([shown_to(chosen, run) for run in scores.key_positions], axis=1))
        if scores.mask is not None:
            mask = array_of(scores.mask)
            hidden.append(columns(mask[batch % len(mask), 0, -scores.queries :][self.rows], scores))
            hidden.append(self._before(self.heads.key_positions))
        given = [part for part in hidden if part is not None]
        return reduce(np.logical_or, given) if given else None
