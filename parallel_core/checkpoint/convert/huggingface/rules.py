"""How one of our tensors is made of those of a HuggingFace file, and they of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parallel_core.checkpoint.lazy import LazyTensor, concatenated
from parallel_core.fused_rows import QueryKeyValueRows, gated_halves


class Rule(NamedTuple):
    """Both directions. Values are only moved, so each undoes the other bit by bit."""

    join: Callable[[Sequence[LazyTensor], QueryKeyValueRows], LazyTensor]
    split: Callable[[LazyTensor, QueryKeyValueRows], list[LazyTensor]]


def _fused_qkv(parts: Sequence[LazyTensor], rows: QueryKeyValueRows) -> LazyTensor:
    apart = concatenated(parts)
    if apart.shape[0] != rows.count:
        raise ValueError(f"{apart.shape[0]} rows of queries, keys and values; heads and groups want {rows.count}")
    return apart.rows(rows.from_apart())


def _split_qkv(whole: LazyTensor, rows: QueryKeyValueRows) -> list[LazyTensor]:
    return [whole.rows(ranges) for ranges in rows.apart()]


SAME = Rule(lambda parts, _: parts[0], lambda whole, _: [whole])
"""The tensor as it is."""
TRANSPOSED = Rule(lambda parts, _: parts[0].transposed(), lambda whole, _: [whole.transposed()])
"""GPT-2's Conv1D: [in, out]."""
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
GATED = Rule(
    lambda parts, _: concatenated(parts),
    lambda whole, _: [whole.rows([half]) for half in gated_halves(whole.shape[0])],
)
"""Gate and up are separate there, and one after the other here."""
