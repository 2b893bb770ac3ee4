"""A block of attention's scores: some queries of a sequence with some of its keys, anywhere in it.

Attention over a whole sequence can be one block. If keys arrive in chunks, each chunk makes a block, and blocks
are put together by what every row keeps: its output, a number m and 1/l, l = sum exp(score - m) (the online softmax of
Milakov & Gimelshein, 2018, where m is the row's largest score; any m serves that keeps l in range). m and l apart, not
log l + m: a row that is masked everywhere has m = -10000, beside which log l would keep but three decimals in float32.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from parallel_core.attention.score_form import PLAIN, ScoreForm
from parallel_core.context import Ranges, cut
from parallel_core.numerics.dtypes import Array
from pynative.kernels.dropout import Key, attention_dropout_mask


class LargestScores(NamedTuple):
    """The largest attention scores of n neighbouring heads, `values` [n]; first_head: the number of the first of them
    among all ranks' heads."""

    first_head: int
    """Number of the first of these heads among all ranks' heads."""
    values: Tensor
    """Float32 [n], one for each head."""


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """The rule of an attention: how a sequence's scores follow from queries and keys (`scale`, and by `form` a cap, a
    bias and a window), which keys a query sees (by `mask`, True where masked, or without one by `causal` order; besides
    none before its first key, and only chosen ones, where these are given), and the dropout of probabilities.
    head_offset: number of the first head among all ranks' heads; largest: a list to which each block's largest scores
    are appended."""

    scale: float
    causal: bool = True
    """Whether keys after a query are left out; if a mask is given, it decides instead."""
    mask: Tensor | None = None
    """Bool [b or 1, 1, s, s], True = masked. A block's queries have its last rows; its columns are the whole
    sequence's."""
    first_keys: Array | None = None
    """Int32 [b, s] on the host: for each query the position of the first key that it sees, at most its own. They never
    decrease along a row, and act beside all other bounds. A block's queries have the last columns. None: the first key
    of all."""
    form: ScoreForm = PLAIN
    """The changes that the model makes to scaled scores before they are masked; its window acts beside `causal` and
    `mask`."""
    dropout_rate: float = 0.0
    dropout_key: Key = ()
    head_offset: int = 0
    """Number of the first head among all ranks' heads, for dropout, ALiBi and `largest`."""
    chosen: Tensor | None = None
    """Int32 [b, s, k]: for each query the positions of the keys that it sees, -1 in the place of none; None: all keys.
    A block's queries have the last rows."""

    largest: list[LargestScores] | None = None
    """A list to which the largest score of each head is appended for every block that is computed, scores that are left
    out aside; None: they are not computed."""

    def report(self, largest: Tensor) -> None:
        """Append the largest scores of a block's heads, [n], with the first head's number, to the rule's own list
        `largest`; nothing if the rule has None there."""
        if self.largest is not None:
            self.largest.append(LargestScores(self.head_offset, largest))

    @property
    def is_causal(self) -> bool:
        """Whether the order of positions alone leaves later keys out: causal and without a mask."""
        return self.causal and self.mask is None


@dataclass(frozen=True, kw_only=True)
class Scores(AttentionRule):
    """A block of attention's scores: the rule, the positions of its queries and keys in the sequence, and the number of
    keys of the whole sequence, `seq_length`."""

    query_positions: Ranges
    """Positions of the block's queries in the sequence: dropout masks are functions of the place."""
    key_positions: Ranges
    seq_length: int
    """Number of keys of the whole sequence."""

    @classmethod
    def of(cls, rule: AttentionRule, queries: Ranges, keys: Ranges, seq_length: int) -> "Scores":
        """The block of the queries and keys at these positions by a rule; seq_length: keys of the whole sequence."""
        return cls(**vars(rule), query_positions=queries, key_positions=keys, seq_length=seq_length)

    @classmethod
    def whole(cls, rule: AttentionRule, q: Tensor, k: Tensor) -> "Scores":
        """The block of all queries q [s, ...] with all keys k [s', ...], at positions from 0 on."""
        return cls.of(rule, (range(len(q)),), (range(len(k)),), len(k))

    @property
    def differs_by_sample(self) -> bool:
        """Whether the samples of a batch may have different masks, first keys or chosen keys: one of these is given."""
        return self.mask is not None or self.chosen is not None or self.first_keys is not None

    @property
    def block_first_keys(self) -> Array | None:
        """The position of the first key that each of the block's queries sees, int32 [b, q]: the last columns of
        `first_keys`; None where that is None."""
        return None if self.first_keys is None else self.first_keys[:, -self.queries :]

    @property
    def sees_nothing(self) -> bool:
        """Whether all keys of the block lie before the window of every query, or all before the first key of every
        query."""
        last, of_documents = self.key_positions[-1].stop - 1, self.block_first_keys
        if of_documents is not None and last < of_documents[:, 0].min():
            return True
        return self.form.window is not None and last < self.query_positions[0].start - self.form.window

    @property
    def sees_all(self) -> bool:
        """Whether no window and no first key hides a key of the block from a query; the order of positions, masks and
        chosen keys are not asked."""
        first, of_documents = self.key_positions[0].start, self.block_first_keys
        if of_documents is not None and first < of_documents[:, -1].max():
            return False
        return self.form.window is None or first >= self.query_positions[-1].stop - 1 - self.form.window

    def heads(self, count: int) -> range:
        """The numbers of this rank's `count` heads among all ranks'."""
        return range(self.head_offset, self.head_offset + count)

    @property
    def queries(self) -> int:
        """The number of queries of the block."""
        return sum(map(len, self.query_positions))

    @property
    def keys(self) -> int:
        """The number of keys of the block."""
        return sum(map(len, self.key_positions))

    def dropout_mask(self, batch: int, head: int, rows: slice) -> Array | None:
        """The mask [rows, keys] that probabilities are multiplied by, float32, 0 or 1 / (1 - rate), the rate rounded to
        a multiple of 1/65536, for the entry `batch` and this rank's head number `head`, from 0; rows: a slice of the
        block's queries, with start and stop. None without dropout. Raises ValueError for a rate outside of [0, 1)."""
        if not self.dropout_rate:
            return None
        shape, head = (self.seq_length, self.seq_length), head + self.head_offset
        masks = [
            attention_dropout_mask(self.dropout_key, batch, head, shape, self.dropout_rate, slice(run.start, run.stop))
            for run in cut(self.query_positions, rows.start, rows.stop)
        ]
        mask = _joined(masks, axis=0)
        return _joined([mask[:, run.start : run.stop] for run in self.key_positions], axis=1)


def _joined(arrays: list[Array], axis: int) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)


class Partial(NamedTuple):
    """Attention `out` [s, b, n * e] of queries over the keys seen so far, with numbers [b, n, s] by which more keys are
    added: for each row m (`maximum`), and 1/l (`inverse_sum`), l the sum of exp(score - m) over these keys, after
    `with_sinks` over the sink, too. All float32. A row without keys has numbers that count for nothing beside those of
    other keys."""

    out: Tensor
    """The output [s, b, n * e] over these keys."""
    maximum: Tensor
    """The number m of each row, [b, n, s]: its largest score, or another that keeps l in range."""
    inverse_sum: Tensor
    """1/l of each row, [b, n, s]."""
