"""Whether float32 values are those of weights: how a place in flat states is recognised."""

from __future__ import annotations

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor, from_bfloat16, to_bfloat16


def rounds_to(main: LazyTensor, weight: LazyTensor) -> bool:
    """Whether a weight is what its float32 value rounds to."""
    values = main.read().reshape(weight.shape)
    if weight.dtype == "bfloat16":
        return np.array_equal(from_bfloat16(to_bfloat16(values)), weight.widened())
    return np.array_equal(values.astype(weight.read().dtype), weight.read())
