"""Writing in place: every type into every type, beside neighbours in flat memory."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.buffers.layout import Span
from pynative import kernels
from pynative.collectives import arrays
from pynative.distributed.flat_memory import FlatMemory
from pynative.memory import in_place
from tests.support.kernels import tensor, values

TYPES = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_a_part_of_flat_memory(target, source):
    """`assign` and `assign_add` to a view of flat memory round once to its type and leave the elements beside it."""
    memory = FlatMemory([Span(0, 6)], target)
    whole, part = memory.view(0, (6,)), memory.view(1, (2, 2))
    given = tensor(np.array([[1 / 3, 2.0], [-5.5, 1e-3]], np.float32), getattr(mindspore, source))
    in_place.assign(part, given)
    expected = tensor(values(given), getattr(mindspore, target))
    np.testing.assert_array_equal(values(part), values(expected))
    in_place.assign_add(part, given)
    total = tensor(values(expected) + values(given), getattr(mindspore, target))
    np.testing.assert_array_equal(values(part), values(total))
    np.testing.assert_array_equal(values(whole), [0, *values(part).reshape(-1), 0])


VIEW = Tensor(np.zeros((2, 3), np.float16)).swapaxes(0, 1)
WRITERS = {
    "assign": lambda: in_place.assign(VIEW, Tensor(np.ones((3, 2), np.float16))),
    "add_": lambda: kernels.add_(VIEW, Tensor(np.ones((3, 2), np.float16))),
    "linear_weight_gradient": lambda: kernels.linear_weight_gradient(
        Tensor(np.ones((4, 3), np.float16)), Tensor(np.ones((4, 2), np.float16)), VIEW
    ),
    "collective": lambda: arrays.writable(VIEW, arrays.kind_of(VIEW.dtype)),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_copy_is_not_written_to(write):
    """Writing to a non-contiguous view, of which MindSpore gives a copy's memory, is an error: the values would be
    lost."""
    with pytest.raises(ValueError, match="a view of another"):
        write()


@pytest.mark.parametrize("write", [in_place.assign, in_place.assign_add])
@pytest.mark.parametrize("target", TYPES)
def test_another_shape_is_refused(target, write):
    """One value, which numpy would repeat, is no source for several: an error, and nothing is written."""
    several = tensor(np.ones((2, 3), np.float32), getattr(mindspore, target))
    with pytest.raises(ValueError, match=r"shape \(1,\).*shape \(2, 3\)"):
        write(several, Tensor(np.zeros(1, np.float32)))
    np.testing.assert_array_equal(values(several), 1)


def test_integers_keep_all_digits():
    """A number beyond those that float32 tells apart is written as it is."""
    target, large = Tensor(np.zeros(1, np.int32)), 2**24 + 1
    in_place.assign(target, Tensor(np.array([large], np.int32)))
    assert target.asnumpy().tolist() == [large]
