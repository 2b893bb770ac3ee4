"""The arrays that host operators compute on are the tensors' own memory, whatever the tensor is."""

import gc

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from pynative.memory.arrays import array_of

TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "bool_")


@pytest.mark.parametrize("name", TYPES)
def test_an_array_is_what_asnumpy_gives(name):
    """`array_of` a tensor of each type has asnumpy's type, shape and values, at the tensor's own address."""
    tensor = Tensor(np.arange(12).reshape(3, 4) % 5).astype(getattr(mindspore, name))
    array, expected = array_of(tensor), tensor.asnumpy()
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(array, expected)
    assert array.ctypes.data == tensor.data_ptr()


def test_views_hold_their_own_entries():
    """`array_of` slices, a transpose, a reshape and an empty view has the entries of the view."""
    whole = Tensor.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    for view in (whole[1:], whole.transpose(1, 0), whole.reshape(2, 6), whole[0, 0], whole[:0], whole[:, 1:3]):
        assert np.array_equal(array_of(view), view.asnumpy())


def test_an_array_keeps_the_memory_of_a_tensor_that_is_gone():
    """`array_of` holds on to its tensor, whose memory the next tensor would otherwise get."""
    array = array_of(Tensor(np.full(1000, 7, np.float32)) * 1)
    gc.collect()
    others = [Tensor(np.zeros(1000, np.float32)) * 1 for _ in range(50)]
    assert (array == 7).all(), len(others)
