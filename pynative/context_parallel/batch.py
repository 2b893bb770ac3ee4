"""Sharding of a batch's sequences over context-parallel ranks: `parallel_core.batch.micro_batches` for dicts of
tensors."""

from typing import Any

import numpy as np
from mindspore import Tensor

from parallel_core.batch import micro_batches as batch
from parallel_core.batch.micro_batches import LABELS, LOSS_MASK, BatchEntry, ContextShard
from parallel_core.context import ContextLayout
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state


def context_shard() -> ContextShard:
    """The shard of each sequence that this rank has: the context-parallel layout and this rank's index in the group."""
    layout = ContextLayout(
        parallel_state.get_context_parallel_for_hybrid_ulysses_world_size(),
        parallel_state.get_context_parallel_for_hybrid_ring_world_size(),
    )
    return ContextShard(layout, parallel_state.get_context_parallel_rank())


def entry_of(name: str, value: Any) -> Any:
    """The BatchEntry of a tensor or array that has axes: the one that `to_tensor` made it of, else a new one, made as
    for the batch's entry `name`; any other value as it is."""
    if not isinstance(value, Tensor | np.ndarray) or not value.ndim:
        return value
    made_of: BatchEntry | None = getattr(value, "batch_entry", None)
    if made_of is not None:
        return made_of
    return BatchEntry.of(name, value.asnumpy() if isinstance(value, Tensor) else value)


def to_tensor(entry: Any) -> Any:
    """The tensor of a BatchEntry, with the entry as its attribute `batch_entry` (whether it is a shard, how many tokens
    count); any other value as it is."""
    if not isinstance(entry, BatchEntry):
        return entry
    tensor = Tensor.from_numpy(np.ascontiguousarray(entry.array))
    tensor.batch_entry = entry
    return tensor


def host_array(tensor: Tensor) -> Array:
    """The values of a batch's tensor: the array of which `to_tensor` made it, without a copy from the device, else
    `tensor.asnumpy()`."""
    made_of: BatchEntry | None = getattr(tensor, "batch_entry", None)
    return tensor.asnumpy() if made_of is None else made_of.array


def tokens_ahead(tokens: Tensor, places: int) -> Tensor:
    """For each position of this rank's shard of tokens or labels [b, s], the value `places` positions later in the
    whole sequence, which may lie in another rank's shard; 0 beyond the end. All context-parallel ranks call this."""
    return _shard_of(LABELS, batch.tokens_ahead(_whole(tokens), places))


def mask_ahead(loss_mask: Tensor | None, labels: Tensor, places: int) -> Tensor:
    """This rank's shard of the loss mask [b, s], moved by `places` positions as `tokens_ahead` moves labels; its
    `batch_entry` has the number of tokens of the whole sequences that count after the move. loss_mask None: a mask of
    ones is moved. All context-parallel ranks call this."""
    mask = np.ones(_whole(labels).shape, np.float32) if loss_mask is None else _whole(loss_mask)
    return _shard_of(LOSS_MASK, batch.tokens_ahead(mask, places))


def _whole(tensor: Tensor) -> Array:
    """The whole sequences [b, S] of a shard: those that it was cut from, where known, else gathered from the group's
    ranks."""
    made_of: BatchEntry | None = getattr(tensor, "batch_entry", None)
    return whole_sequence(tensor) if made_of is None or made_of.whole is None else made_of.whole


def _shard_of(name: str, whole: Array) -> Tensor:
    return to_tensor(context_shard().entry(name, BatchEntry.of(name, whole)))


def counted_tokens(labels: Tensor, loss_mask: Tensor | None) -> float | None:
    """The number of tokens of a micro-batch's whole sequences that count; None where the loss mask, or without a
    loss mask the labels, is not a tensor that `to_tensor` made of an entry with that number (`row_tokens`)."""
    made_of: BatchEntry | None = getattr(labels if loss_mask is None else loss_mask, "batch_entry", None)
    return None if made_of is None else made_of.tokens


def get_batch_on_this_cp_rank(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with this context-parallel rank's positions of each sequence, arrays of one axis or more as tensors;
    the batch itself with one context-parallel rank.

    An array or tensor of two axes or more is taken for [b, s, ...] and loses positions along axis 1; but of
    `attention_mask` [b or 1, 1, s, s], along axis 2, and `document_starts` [b, s] the rows of those queries remain that
    attend on this rank (`ContextShard.queries`). Values of other entries stay, and so do those of tensors that this
    function returned. Raises ValueError where s is no multiple of the number of context-parallel ranks, or with a ring
    of several ranks of twice that number; for `attention_mask` and `document_starts` only where s is no multiple of 2r
    in a ring of r > 1 ranks.
    """
    shard = context_shard()
    if shard.layout.size == 1:
        return batch
    entries = {name: entry_of(name, value) for name, value in batch.items()}
    return {name: to_tensor(shard.entry(name, entry)) for name, entry in entries.items()}


def whole_sequence(tensor: Tensor) -> Array:
    """The whole sequences [b, S], gathered over the context-parallel group from each rank's shard [b, s]."""
    shards = parallel_state.get_context_parallel_group().all_gather(tensor, axis=1)
    return context_shard().layout.to_whole(shards.asnumpy(), axis=1)
