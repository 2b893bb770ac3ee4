"""Parts of a tensor as tensors of their own, on the host."""

import numpy as np
from mindspore import Tensor, from_numpy


def piece(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    # A copy even where a view would do: the piece outlives the whole.
    return from_numpy(np.array(np.split(x.asnumpy(), count, axis)[index], order="C"))


def sequence_first(x: Tensor) -> Tensor:
    return from_numpy(np.ascontiguousarray(x.asnumpy().T))
