"""What of a batch a context-parallel rank works on."""

import numpy as np

from parallel_core.context import Ranges
from pynative.context_parallel.attention import ContextParallel


def _take(array: np.ndarray, positions: Ranges, axis: int) -> np.ndarray:
    """The entries of `array` at these positions along an axis."""
    front = (slice(None),) * axis
    return np.concatenate([array[(*front, slice(run.start, run.stop))] for run in positions], axis)


def cut_mask_rows(mask: np.ndarray, context: ContextParallel) -> np.ndarray:
    """[b or 1, 1, s, s] -> the rows of the queries that this rank's attention multiplies: its ring piece's."""
    return _take(mask, context.layout.ring_positions(mask.shape[2], context.ring_group.rank), 2)
