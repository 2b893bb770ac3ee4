"""Reductions of the parts that ranks bring: sums of 16-bit types in float32, rounded once, large or small."""

from unittest.mock import patch

import mindspore as ms
import numpy as np
import pytest

from parallel_core.numerics.dtypes import DTYPES
from pynative.collectives.arrays import KINDS, copied, reduce_into
from pynative.dtypes import BFLOAT16
from pynative.memory.rounding import FEW
from tests.support.addresses import placed

BY_NAME = {kind.name: kind for kind in KINDS.values()}
TYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": BFLOAT16}


def parts_of(name: str, ranks: int, size: int) -> list[np.ndarray]:
    """Each rank's drawn part [size], as it lies in memory: bfloat16 as 16-bit integers of its bits."""
    random = np.random.default_rng(ranks)
    drawn = [random.standard_normal(size).astype(np.float32).astype(TYPES[name]) for _ in range(ranks)]
    return [part.view(DTYPES[name].numpy) for part in drawn]


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("size", [100, FEW + 3])
@pytest.mark.parametrize("ranks", [2, 3, 12])
@pytest.mark.parametrize("name", TYPES)
def test_parts_are_reduced_in_order_and_rounded_once(name, ranks, size, op):
    """`reduce_into` equals numpy's reduction in rank order in float32, rounded once at the end, into new memory and in
    place over the first part."""
    dtype, parts = TYPES[name], parts_of(name, ranks, size)
    expected = parts[0].view(dtype).astype(np.float32)
    for part in parts[1:]:
        expected = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op](expected, part.view(dtype))
    target = np.empty_like(parts[0])
    reduce_into(target, parts, op, BY_NAME[name])
    reduce_into(parts[0], parts, op, BY_NAME[name])
    for result in (target, parts[0]):
        np.testing.assert_array_equal(result, expected.astype(np.float32).astype(dtype).view(result.dtype))


@pytest.mark.parametrize("size", [100, FEW + 3])
@pytest.mark.parametrize("name", TYPES)
def test_a_sum_does_not_depend_on_addresses(name, size):
    """`reduce_into` gives the same bits at any alignment of the parts: a rank's own lies in its tensor, the others' in
    pages of shared memory."""
    parts = parts_of(name, 3, size)
    found = set[bytes]()
    for step in range(0, 64, parts[0].itemsize):
        target = placed(parts[0], 3 * step % 64)
        others = placed(parts[1], step), placed(parts[2], 0)
        reduce_into(target, [target, *others], "sum", BY_NAME[name])
        found.add(target.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("target", ["CPU", "Ascend"])
def test_a_copy_reaches_memory_of_a_device(target):
    """A group of one copies x into `out` by numpy in the host's memory, by MindSpore's operator on a device."""
    x, out = (ms.Tensor(np.full(3, value, np.float32)) for value in (2, 0))
    with patch.object(ms, "get_context", lambda name: target), patch("pynative.memory.arrays.writable") as written:
        written.return_value = memory = np.zeros(3, np.float32)
        assert copied(x, out, BY_NAME["float32"]) is out
    on_device = target != "CPU"
    assert written.called != on_device and out.asnumpy().tolist() == [2.0 * on_device] * 3
    assert memory.tolist() == [0.0 if on_device else 2.0] * 3
