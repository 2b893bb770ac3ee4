"""What of a batch a context-parallel rank works on."""

from typing import Any

import numpy as np
from mindspore import Tensor

from parallel_core.context import ContextLayout, Ranges
from pynative import parallel_state

ATTENTION_MASK = "attention_mask"


def context_layout() -> ContextLayout:
    """How a sequence lies over the ranks that share it."""
    return ContextLayout(
        parallel_state.get_context_parallel_for_hybrid_ulysses_world_size(),
        parallel_state.get_context_parallel_for_hybrid_ring_world_size(),
    )


def get_batch_on_this_cp_rank(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with its sequences cut to what this context-parallel rank holds.

    Entries [b, s, ...] lose positions along axis 1, `attention_mask` [b or 1, 1, s, s] rows along axis 2; entries that
    are no arrays or have one axis stay, and so does what this function cut before: a script may call it in its
    get_batch_func, as Megatron's do. Raises ValueError where s does not divide.
    """
    if parallel_state.get_context_parallel_world_size() == 1:
        return batch
    return {name: _cut_entry(name, value) for name, value in batch.items()}


def is_piece(value: Any) -> bool:
    """Whether `get_batch_on_this_cp_rank` made this of whole sequences."""
    return getattr(value, "is_piece_of_sequences", False)


def piece(array: np.ndarray) -> Tensor:
    """An array of which other context-parallel ranks have other positions, so marked."""
    tensor = Tensor.from_numpy(array)
    tensor.is_piece_of_sequences = True
    return tensor


def _cut_entry(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor | np.ndarray) or value.ndim < 2 or is_piece(value):
        return value
    array = value.asnumpy() if isinstance(value, Tensor) else value
    return piece(cut_mask_rows(array) if name == ATTENTION_MASK else cut_sequence(array, name))


def cut_sequence(array: np.ndarray, name: str = "array") -> np.ndarray:
    """[b, s, ...] -> the positions that this rank holds."""
    layout, length = context_layout(), array.shape[1]
    if length % layout.divisor:
        raise ValueError(
            f"{name!r} has sequences of {length}: must be a multiple of {layout.divisor} with --context-parallel-size "
            f"{layout.size}; pad them or change the size"
        )
    return _take(array, layout.positions(length, parallel_state.get_context_parallel_rank()), 1)


def cut_mask_rows(mask: np.ndarray) -> np.ndarray:
    """[b or 1, 1, s, s] -> the rows of the queries that meet in this rank's attention: its ring place's, all columns.

    With Ulysses alone these are all rows, since there a rank has whole sequences of some heads.
    """
    layout, ring = context_layout(), parallel_state.get_context_parallel_group_for_hybrid_ring()
    return _take(mask, layout.ring_positions(mask.shape[2], ring.rank), 2)


def _take(array: np.ndarray, positions: Ranges, axis: int) -> np.ndarray:
    """The entries of `array` at these positions along an axis."""
    before = (slice(None),) * axis
    return np.concatenate([array[(*before, slice(run.start, run.stop))] for run in positions], axis)


def whole_sequence(tensor: Tensor) -> np.ndarray:
    """[b, s], a piece of each sequence -> [b, whole s], gathered over the context-parallel group."""
    pieces = parallel_state.get_context_parallel_group().all_gather(tensor, axis=1)
    return context_layout().to_whole(pieces.asnumpy(), axis=1)
