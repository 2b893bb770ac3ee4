"""Padding between the parameters of a flat buffer changes no bit, so jobs that differ in the alignment alone agree."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, from_numpy

from parallel_core.buffers.layout import aligned
from pynative.kernels.contract import CONTRACT, flat_buffers
from pynative.memory.arrays import array_of, array_type
from tests.support.operator_calls import CALLS, FLAT

OPERATORS = [name for name, operator in CONTRACT.items() if operator.__module__ == flat_buffers.__name__]


class Padded:
    """Lays a flat array's parameters, of drawn sizes, at multiples of `alignment` elements with zeros between."""

    def __init__(self, alignment: int) -> None:
        cuts = np.sort(np.random.default_rng(0).choice(FLAT, 100, replace=False))
        lengths = np.diff([0, *cuts, FLAT])
        starts = np.cumsum([0, *(aligned(int(length), alignment) for length in lengths)])
        self._size = int(starts[-1])
        self.places = np.concatenate([np.arange(n) + start for n, start in zip(lengths, starts, strict=False)])

    def __call__(self, array: np.ndarray, dtype: mindspore.Type | None = None) -> Tensor:
        buffer = np.zeros(self._size, array_type(dtype or mindspore.float32))
        buffer[self.places] = array
        return from_numpy(buffer)

    def outcome(self, call) -> list[bytes]:
        """Bytes of the parameters in an operator's results, without padding; of a number, as float32, the type in which
        ranks exchange it."""
        result = call(self)
        if isinstance(result, float):
            return [np.float32(result).tobytes()]
        flat = [tensor for part in result for tensor in (part if isinstance(part, list) else [part])]
        arrays = map(array_of, flat)
        return [(array[self.places] if array.ndim else array).tobytes() for array in arrays]


@pytest.mark.parametrize("alignment", [16, 64, 256])
@pytest.mark.parametrize("name", OPERATORS)
def test_padding_changes_nothing(name, alignment):
    """Each operator over flat buffers gives the same bits with any padding. A sum of squares in float32 would depend on
    what BLAS adds up first."""
    assert Padded(alignment).outcome(CALLS[name]) == Padded(1).outcome(CALLS[name])
