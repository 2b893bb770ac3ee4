"""Rules that make one of our tensors of those of a HuggingFace file, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from parallel_core.attention.fused_rows import QueryKeyValueRows, gated_halves
from parallel_core.checkpoint.lazy import LazyTensor, concatenated


class IndexerRows(NamedTuple):
    """The rows of a head of DeepSeek's indexer: there channels that rotate come first, i with i + r/2, here last, as
    neighbours."""

    size: int
    rotary: int
    """r."""

    def ours(self) -> list[int]:
        """The row there of each of our rows."""
        half = self.rotary // 2
        return [*range(self.rotary, self.size), *(row for pair in range(half) for row in (pair, pair + half))]

    def theirs(self) -> list[int]:
        """Our row of each of the rows there."""
        ours = self.ours()
        return sorted(range(self.size), key=ours.__getitem__)

    def rotary_last(self) -> list[int]:
        """Rows as in `ours`, where pairs are neighbours there, too."""
        return [*range(self.rotary, self.size), *range(self.rotary)]

    def rotary_first(self) -> list[int]:
        """Rows as in `theirs`, where pairs are neighbours there, too."""
        return [*range(self.size - self.rotary, self.size), *range(self.size - self.rotary)]

    def of_all(self, order: list[int], count: int) -> Iterator[range]:
        """`count` rows, head by head in an order."""
        yield from (range(start + row, start + row + 1) for start in range(0, count, self.size) for row in order)


class DeltaRows(NamedTuple):
    """The rows of in_proj of a gated delta net: here those of all queries, keys, values, gates, rates and decays."""

    keys: int = 1
    """Heads of queries and keys."""
    heads: int = 1
    """Heads of values."""
    key_size: int = 0
    value_size: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the six parts."""
        key, value = self.keys * self.key_size, self.heads * self.value_size
        return key, key, value, value, self.heads, self.heads

    def apart(self) -> list[range]:
        """The six parts."""
        ends = [*accumulate(self.widths)]
        return [range(end - width, end) for width, end in zip(self.widths, ends, strict=True)]

    def by_head(self) -> tuple[list[range], list[range]]:
        """Our rows in the order of two tensors that have, key head by key head, the first four parts, and the last two
        (Qwen3-Next)."""
        parts = [
            [range(part.start + head * len(part) // self.keys, part.start + (head + 1) * len(part) // self.keys)
             for head in range(self.keys)]
            for part in self.apart()
        ]  # fmt: skip
        by_head = [*zip(*parts, strict=True)]
        first, second = ([run for head in by_head for run in head[own]] for own in (slice(4), slice(4, 6)))
        return first, second


class Rows(NamedTuple):
    """Rows of a model's fused and permuted parameters."""

    qkv: QueryKeyValueRows
    indexer: IndexerRows
    delta: DeltaRows = DeltaRows()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Rows":
        """The rule for a model with these settings."""
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
    """Both directions. Values are only moved, so each undoes the other bit by bit."""

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
"""The tensor as it is."""
TRANSPOSED = Rule(lambda parts, _: parts[0].transposed(), lambda whole, _: [whole.transposed()])
"""GPT-2's Conv1D: [in, out]."""
BESIDE = Rule(
    lambda parts, _: concatenated([part.transposed() for part in parts]).transposed(),
    lambda whole, _: [whole.transposed().rows([half]).transposed() for half in gated_halves(whole.shape[1])],
)
"""Two matrices there, whose columns stand beside each other here."""
QKV = Rule(_fused_qkv, _split_qkv)
"""Queries, keys and values are separate there, and grouped by key/value group here."""
FUSED_QKV = Rule(
    lambda parts, rows: _fused_qkv(parts, rows), lambda whole, rows: [concatenated(_split_qkv(whole, rows))]
)
"""Queries, keys and values one after another in one tensor."""
FUSED_QKV_TRANSPOSED = Rule(
    lambda parts, rows: _fused_qkv([parts[0].transposed()], rows),
    lambda whole, rows: [concatenated(_split_qkv(whole, rows)).transposed()],
)
"""GPT-2's c_attn: the same along columns."""
INDEXER_NEIGHBOURS = Rule(
    lambda parts, rows: _of_indexer(parts[0], rows.indexer.rotary_last(), rows),
    lambda whole, rows: [_of_indexer(whole, rows.indexer.rotary_first(), rows)],
)
"""The same where neighbours are pairs there, too (GLM-5)."""
INDEXER = Rule(
    lambda parts, rows: _of_indexer(parts[0], rows.indexer.ours(), rows),
    lambda whole, rows: [_of_indexer(whole, rows.indexer.theirs(), rows)],
)
"""Queries, keys and the norm of keys of an indexer."""


def _by_halves(whole: LazyTensor) -> LazyTensor:
    """Rows 0, 2, ..., then rows 1, 3, ..."""
    return whole.changed(whole.shape, lambda array: np.concatenate([array[::2], array[1::2]]))


def _by_neighbours(whole: LazyTensor) -> LazyTensor:
    """Rows of the first half and of the second in turns."""
    return whole.changed(whole.shape, lambda array: np.stack(np.split(array, 2), axis=1).reshape(array.shape))


NEIGHBOURS = Rule(lambda parts, _: _by_halves(parts[0]), lambda whole, _: [_by_neighbours(whole)])
"""Gate and up take turns there, and come one after the other here."""
NEIGHBOURS_TRANSPOSED = Rule(
    lambda parts, _: _by_halves(parts[0].transposed()), lambda whole, _: [_by_neighbours(whole).transposed()]
)
"""The same along columns."""
IN_A_ROW = Rule(lambda parts, _: parts[0].flat(), lambda whole, _: [whole.reshaped((1, *whole.shape))])
"""A vector is a matrix of one row there."""
_DELTA = "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"


def _inverse(ranges: Sequence[range]) -> list[range]:
    """Places of the rows, in their own order, when they lie in the order of these ranges, which cover them."""
    there = [(run.start, end - len(run), end) for run, end in zip(ranges, accumulate(map(len, ranges)), strict=True)]
    return [range(start, end) for _, start, end in sorted(there)]


def _delta_from_heads(parts: Sequence[LazyTensor], of: Rows) -> LazyTensor:
    first, second = of.delta.by_head()
    return concatenated(parts).rows(_inverse([*first, *second]))


def _delta_from_parts(whole: LazyTensor, of: Rows) -> list[LazyTensor]:
    queries, _, values, *others = of.delta.apart()
    return [whole.rows([rows]) for rows in (range(queries.start, values.stop), *others)]


DELTA_BY_HEAD = Rule(_delta_from_heads, lambda whole, of: [whole.rows(ranges) for ranges in of.delta.by_head()])
"""A gated delta net's first linear, whose parts take turns there by key head in two tensors."""
DELTA_BY_PART = Rule(lambda parts, _: concatenated(parts), _delta_from_parts)
"""The same in four tensors: queries, keys and values; gates; rates; decays."""


def _lightning_order(of: Rows) -> list[range]:
    """Places of the rows of queries, keys and values of all heads, and then gates, lie in one tensor that has them head
    by head, and another with gates."""
    heads, size = of.qkv.heads, of.qkv.head_size
    places = (3 * head + part for part in range(3) for head in range(heads))
    by_part = [range(place * size, (place + 1) * size) for place in places]
    return [*by_part, range(3 * heads * size, 4 * heads * size)]


def _lightning_apart(whole: LazyTensor, of: Rows) -> list[LazyTensor]:
    both, gates = whole.rows(_inverse(_lightning_order(of))), of.qkv.heads * of.qkv.head_size
    return [both.rows([range(3 * gates)]), both.rows([range(3 * gates, 4 * gates)])]


LIGHTNING = Rule(lambda parts, of: concatenated(parts).rows(_lightning_order(of)), _lightning_apart)
"""Lightning attention's first linear: queries, keys and values head by head there, and gates in another tensor."""
GATED = Rule(
    lambda parts, _: concatenated(parts),
    lambda whole, _: [whole.rows([half]) for half in gated_halves(whole.shape[0])],
)
"""Gate and up are separate there, and one after the other here."""
