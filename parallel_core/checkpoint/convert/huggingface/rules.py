"""Rules by which one of our tensors is made of those of a HuggingFace file, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from parallel_core.attention.fused_rows import QueryKeyValueRows, gated_halves
from parallel_core.checkpoint.lazy import LazyTensor, concatenated


class IndexerRows(NamedTuple):
    """The order of the rows of one head (`size` of them) of DeepSeek's indexer: in the file the `rotary` channels that
    rotate come first, i paired with i + rotary/2; in ours they come last, pairs as neighbours."""

    size: int
    rotary: int
    """The number of channels of a head that rotate."""

    def ours(self) -> list[int]:
        """For each of our rows of a head, in order, the number of the same row in the file."""
        half = self.rotary // 2
        return [*range(self.rotary, self.size), *(row for pair in range(half) for row in (pair, pair + half))]

    def theirs(self) -> list[int]:
        """For each row of a head in the file, in order, the number of the same row in ours."""
        ours = self.ours()
        return sorted(range(self.size), key=ours.__getitem__)

    def rotary_last(self) -> list[int]:
        """For each of our rows of a head, whose rotary channels come last, the number of the same row in a file of
        another form, where they come first; in both the two channels of a pair are neighbours."""
        return [*range(self.rotary, self.size), *range(self.rotary)]

    def rotary_first(self) -> list[int]:
        """The reverse of `rotary_last`: for each row of a head in a file of that form, in order, the number of the same
        row in ours."""
        return [*range(self.size - self.rotary, self.size), *range(self.size - self.rotary)]

    def of_all(self, order: list[int], count: int) -> Iterator[range]:
        """The numbers of the `count` rows of a tensor, a multiple of `size`, in another order, each as a range of one:
        head after head, within each head in the order `order`, which has the number of each row of a head."""
        yield from (range(start + row, start + row + 1) for start in range(0, count, self.size) for row in order)


class DeltaRows(NamedTuple):
    """The rows of our first linear (in_proj) of a gated delta net, in six parts: all queries, keys, values, gates,
    rates, decays. keys: the number of heads of queries and keys; heads: that of values."""

    keys: int = 1
    """Number of heads of queries and keys."""
    heads: int = 1
    """Number of heads of values."""
    key_size: int = 0
    value_size: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of rows of the six parts: queries, keys, values, gates, rates, decays."""
        key, value = self.keys * self.key_size, self.heads * self.value_size
        return key, key, value, value, self.heads, self.heads

    def apart(self) -> list[range]:
        """For each of the six parts (queries, keys, values, gates, rates, decays) the range of its rows in our first
        linear."""
        ends = [*accumulate(self.widths)]
        return [range(end - width, end) for width, end in zip(self.widths, ends, strict=True)]

    def by_head(self) -> tuple[list[range], list[range]]:
        """Ranges of our rows in the order of two tensors of the file (Qwen3-Next): queries, keys, values and gates of
        the first key head, then of the next, and so on; and in the same way rates and decays."""
        parts = [
            [range(part.start + head * len(part) // self.keys, part.start + (head + 1) * len(part) // self.keys)
             for head in range(self.keys)]
            for part in self.apart()
        ]  # fmt: skip
        by_head = [*zip(*parts, strict=True)]
        first, second = ([run for head in by_head for run in head[own]] for own in (slice(4), slice(4, 6)))
        return first, second


class Rows(NamedTuple):
    """The orders of rows of a model's fused and permuted parameters."""

    qkv: QueryKeyValueRows
    indexer: IndexerRows
    delta: DeltaRows = DeltaRows()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Rows":
        """The orders of rows for a model with these settings (section -> option -> value)."""
        network = found["model_config"]
        heads = network["num_attention_heads"]
        size = network.get("kv_channels") or network["hidden_size"] // heads
        sparse, latent = network.get("sparse_attention", {}), network.get("multi_latent_attention", {})
        states = network.get("linear_attention", {})
        return cls(
            QueryKeyValueRows(
                heads, network.get("num_query_groups") or heads, size, network.get("attention_output_gate", False)
            ),
            IndexerRows(sparse.get("dsa_indexer_head_dim", 0), latent.get("qk_pos_emb_head_dim", 0)),
            DeltaRows(*(states[f"linear_{name}"] for name in _DELTA))
            if "linear_num_key_heads" in states
            else DeltaRows(),
        )


class Rule(NamedTuple):
    """Both directions between our tensor and theirs: `join` makes ours, `split` theirs. Values are moved, not computed;
    the rule of one table of whole numbers (DeepSeek-V4) also changes their type."""

    join: Callable[[Sequence[LazyTensor], Rows], LazyTensor]
    split: Callable[[LazyTensor, Rows], list[LazyTensor]]


def _fused_qkv(parts: Sequence[LazyTensor], of: Rows) -> LazyTensor:
    apart, rows = concatenated(parts), of.qkv
    if apart.shape[0] != rows.count:
        raise ValueError(f"{apart.shape[0]} rows of queries, keys and values; heads and groups want {rows.count}")
    return apart.rows(rows.from_apart())


def _split_qkv(whole: LazyTensor, of: Rows) -> list[LazyTensor]:
    return [whole.rows(ranges) for ranges in of.qkv.apart()]


def _of_indexer(tensor: LazyTensor, order: list[int], rows: Rows) -> LazyTensor:
    if tensor.shape[0] % rows.indexer.size:
        raise ValueError(f"{tensor.shape[0]} rows; the indexer's heads have {rows.indexer.size}")
    return tensor.rows(rows.indexer.of_all(order, tensor.shape[0]))


SAME = Rule(lambda parts, _: parts[0], lambda whole, _: [whole])
"""The one tensor of the file as it is."""
TRANSPOSED = Rule(lambda parts, _: parts[0].transposed(), lambda whole, _: [whole.transposed()])
"""The transpose of the one matrix in the file, which is [in, out] (GPT-2's Conv1D)."""
BESIDE = Rule(
    lambda parts, _: concatenated([part.transposed() for part in parts]).transposed(),
    lambda whole, _: [whole.transposed().rows([half]).transposed() for half in gated_halves(whole.shape[1])],
)
"""Two matrices in the file, with the first and the second half of our columns."""
QKV = Rule(_fused_qkv, _split_qkv)
"""Queries, keys and values, three tensors in the file, are grouped by key/value group in one of ours."""
FUSED_QKV = Rule(
    lambda parts, rows: _fused_qkv(parts, rows), lambda whole, rows: [concatenated(_split_qkv(whole, rows))]
)
"""Queries, keys and values one after another in one tensor of the file, grouped by key/value group in ours."""
FUSED_QKV_TRANSPOSED = Rule(
    lambda parts, rows: _fused_qkv([parts[0].transposed()], rows),
    lambda whole, rows: [concatenated(_split_qkv(whole, rows)).transposed()],
)
"""As FUSED_QKV, along the columns of the file's matrix, which is transposed (GPT-2's c_attn)."""
INDEXER_NEIGHBOURS = Rule(
    lambda parts, rows: _of_indexer(parts[0], rows.indexer.rotary_last(), rows),
    lambda whole, rows: [_of_indexer(whole, rows.indexer.rotary_first(), rows)],
)
"""As INDEXER, for files in which pairs of rotating channels are neighbours (GLM-5)."""
INDEXER = Rule(
    lambda parts, rows: _of_indexer(parts[0], rows.indexer.ours(), rows),
    lambda whole, rows: [_of_indexer(whole, rows.indexer.theirs(), rows)],
)
"""An indexer's queries, keys or norm of keys, whose rows lie as `IndexerRows` says."""


def _by_halves(whole: LazyTensor) -> LazyTensor:
    """The rows 0, 2, ..., then 1, 3, ... of a tensor."""
    return whole.changed(whole.shape, lambda array: np.concatenate([array[::2], array[1::2]]))


def _by_neighbours(whole: LazyTensor) -> LazyTensor:
    """The rows of a tensor's first half and second half in turns; undoes `_by_halves`."""
    return whole.changed(whole.shape, lambda array: np.stack(np.split(array, 2), axis=1).reshape(array.shape))


NEIGHBOURS = Rule(lambda parts, _: _by_halves(parts[0]), lambda whole, _: [_by_neighbours(whole)])
"""Rows of gate and up that take turns in the file, and come one part after the other in ours."""
NEIGHBOURS_TRANSPOSED = Rule(
    lambda parts, _: _by_halves(parts[0].transposed()), lambda whole, _: [_by_neighbours(whole).transposed()]
)
"""As NEIGHBOURS, along the columns of the file's matrix, which is transposed."""
IN_A_ROW = Rule(lambda parts, _: parts[0].flat(), lambda whole, _: [whole.reshaped((1, *whole.shape))])
"""A vector of ours that is a matrix of one row in the file."""
_DELTA = "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"


def _inverse(ranges: Sequence[range]) -> list[range]:
    """The ranges that put rows which lie in the order of `ranges`, which cover them, back into their own order."""
    there = [(run.start, end - len(run), end) for run, end in zip(ranges, accumulate(map(len, ranges)), strict=True)]
    return [range(start, end) for _, start, end in sorted(there)]


def _delta_from_heads(parts: Sequence[LazyTensor], of: Rows) -> LazyTensor:
    first, second = of.delta.by_head()
    return concatenated(parts).rows(_inverse([*first, *second]))


def _delta_from_parts(whole: LazyTensor, of: Rows) -> list[LazyTensor]:
    queries, _, values, *others = of.delta.apart()
    return [whole.rows([rows]) for rows in (range(queries.start, values.stop), *others)]


DELTA_BY_HEAD = Rule(_delta_from_heads, lambda whole, of: [whole.rows(ranges) for ranges in of.delta.by_head()])
"""A gated delta net's first linear from two tensors, in which its parts take turns by key head."""
DELTA_BY_PART = Rule(lambda parts, _: concatenated(parts), _delta_from_parts)
"""A gated delta net's first linear from four tensors: queries, keys and values; gates; rates; decays."""


def _lightning_order(of: Rows) -> list[range]:
    """For each head of our rows (queries of all heads, keys, values, then all gates) its rows in the file's two tensors
    one after the other: queries, keys and values head by head, and gates."""
    heads, size = of.qkv.heads, of.qkv.head_size
    places = (3 * head + part for part in range(3) for head in range(heads))
    by_part = [range(place * size, (place + 1) * size) for place in places]
    return [*by_part, range(3 * heads * size, 4 * heads * size)]


def _lightning_apart(whole: LazyTensor, of: Rows) -> list[LazyTensor]:
    both, gates = whole.rows(_inverse(_lightning_order(of))), of.qkv.heads * of.qkv.head_size
    return [both.rows([range(3 * gates)]), both.rows([range(3 * gates, 4 * gates)])]


LIGHTNING = Rule(lambda parts, of: concatenated(parts).rows(_lightning_order(of)), _lightning_apart)
"""Lightning attention's first linear from two tensors: queries, keys and values head by head, and gates."""
GATED = Rule(
    lambda parts, _: concatenated(parts),
    lambda whole, _: [whole.rows([half]) for half in gated_halves(whole.shape[0])],
)
"""Gate and up, two tensors in the file, one after the other in ours."""
