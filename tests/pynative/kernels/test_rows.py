"""`gather_rows` and `sum_rows` in every stack and type against numpy: rows that are not there (-1), and several blocks
of rows."""

import mindspore
import numpy as np
import pytest

from pynative import kernels
from tests.support.kernel_stacks import STACKS, selected
from tests.support.kernels import normal, tensor, values

TYPES = (mindspore.float32, mindspore.float16, mindspore.bfloat16)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("rows", "width"), [(7, 5), (900, 700), (0, 3)])
def test_rows_of_any_number(stack, dtype, rows, width):
    """`gather_rows` moves bits; `sum_rows` of 16-bit rows rounds once; row -1 is zeros."""
    generator = np.random.default_rng(rows)
    x = values(tensor(normal(rows, width), dtype))
    whole = np.concatenate([x, np.zeros((1, width), np.float32)])
    places = generator.integers(-1, rows or 0, (rows // 2 + 2, 3)).astype(np.int32)
    with selected(stack):
        given = tensor(x, dtype)
        gathered = kernels.gather_rows(given, places[:, 0], (width,))
        summed = kernels.sum_rows(given, places, (1, *places.shape[:1], width))
        single = kernels.sum_rows(given, places[:, :1], (len(places), width))
        numbers = kernels.gather_rows(given, np.where(places[:, 1] < 0, -1, places[:, 1] * width), ())
    assert gathered.dtype == summed.dtype == dtype
    np.testing.assert_array_equal(values(gathered), whole[places[:, 0]])
    np.testing.assert_array_equal(values(single), whole[places[:, 0]])
    expected = whole[places[:, 0]] + whole[places[:, 1]] + whole[places[:, 2]]
    np.testing.assert_array_equal(values(summed)[0], values(tensor(expected, dtype)))
    np.testing.assert_array_equal(values(numbers), whole[places[:, 1], 0])
