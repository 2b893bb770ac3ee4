"""An operator's bits do not depend on where in memory its arrays lie: the same training twice in a process is the same.

BLAS, oneDNN and numpy all have loops that take a few elements singly until an address suits their vectors; in a sum
these elements would be added in another order.
"""

import platform
import sys
from collections.abc import Iterator, Sequence

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, from_numpy

from parallel_core.system.blas import cpu_flags, usable_cores
from pynative.kernels.contract import CONTRACT
from pynative.kernels.host import blas
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.engine.numpy_engine import NumpyEngine
from pynative.memory.arrays import array_of, array_type
from pynative.memory.rounding import convert
from tests.support.addresses import allocations_at, placed
from tests.support.kernels import normal
from tests.support.operator_calls import CALLS

ENGINES = {"this process's": ENGINE, "numpy": NumpyEngine()}
FAR = (64, 1024, 4096)
"""Distances in bytes: a cache line, and those after which a page or a cache might repeat."""
TRIALS = (1, 2, 4, 8, 15, *range(16, 16 + len(FAR)))
"""Numbers of trials (`Moved`). In the first five the first input lies 4, 8, 16, 32 or 60 bytes behind a multiple of 64,
so every width of vectors begins at another element; then FAR."""
SETTINGS = [
    ("this process's", mindspore.float32, TRIALS),
    ("this process's", mindspore.bfloat16, TRIALS[::2]),
    ("numpy", mindspore.float32, TRIALS),
]


@pytest.fixture
def engine(request, monkeypatch) -> None:
    """Make all host operators compute with the engine that the test's parameter names."""
    for name, module in sys.modules.items():
        if name.startswith("pynative.kernels.host.") and hasattr(module, "ENGINE"):
            monkeypatch.setattr(module, "ENGINE", ENGINES[request.param])


class Moved:
    """Makes a call's inputs: in trial t < 16 the i-th begins (2i + 1) t x 4 bytes (modulo 64) behind a multiple of 64,
    so each elsewhere; in later trials at FAR distances."""

    def __init__(self, trial: int, dtype: mindspore.Type) -> None:
        self._trial, self._type, self._made = trial, dtype, 0

    def __call__(self, array: np.ndarray, dtype: mindspore.Type | None = None) -> Tensor:
        if array.dtype == np.float32:
            given, array = array, np.empty(array.shape, array_type(dtype or self._type))
            convert(given, array)
        offset = 4 * ((2 * self._made + 1) * self._trial % 16) if self._trial < 16 else FAR[self._trial - 16]
        self._made += 1
        return from_numpy(placed(array, offset // array.itemsize * array.itemsize))


def bits(result) -> list[bytes]:
    """The bytes of every array in a result."""
    if isinstance(result, Tensor):
        return [array_of(result).tobytes()]
    return [np.float64(result).tobytes()] if isinstance(result, float) else [x for part in result for x in bits(part)]


def outcome(call, trial: int, dtype: mindspore.Type) -> list[bytes]:
    """The `bits` of a call whose inputs and allocations lie at the addresses of this trial."""
    with allocations_at(16 * (trial % 4) if trial < 16 else FAR[trial - 16]):
        return bits(call(Moved(trial, dtype)))


def trials_that_differ(call, dtype: mindspore.Type = mindspore.float32, trials: Sequence[int] = TRIALS) -> list[int]:
    """Trials whose result has other bits than a first call in ordinary memory, which also fills caches that outlive a
    call."""
    expected = bits(call(Moved(0, dtype)))
    return [trial for trial in trials if outcome(call, trial, dtype) != expected]


def test_every_operator_is_tried():
    """CALLS has a call of every operator of the contract, and no other."""
    assert set(CALLS) == set(CONTRACT)


@pytest.mark.parametrize(("engine", "dtype", "trials"), SETTINGS, indirect=["engine"], ids=["float32", "bf16", "numpy"])
@pytest.mark.parametrize("name", CALLS)
def test_addresses_change_nothing(name, engine, dtype, trials):
    """Results and gradients of each operator have the same bits wherever its inputs and the arrays that it allocates
    lie."""
    assert trials_that_differ(CALLS[name], dtype, trials) == []


def test_a_sum_that_begins_where_an_address_suits_is_found():
    """The method finds a sum that takes elements singly up to an aligned address, in an input and in memory that an
    operator allocates."""

    def peeled(array: np.ndarray) -> float:
        first = -array.ctypes.data % 64 // 4
        return float(array[:first].sum() + array[first:].sum())

    assert trials_that_differ(lambda new: peeled(array_of(new(normal(1000)))))
    assert trials_that_differ(lambda new: peeled(normal(1000) + 0))


PRODUCTS = {
    "matrices": (lambda a, b: a @ b, "rk", "kc"),
    "the left one transposed": (lambda a, b: a.T @ b, "kr", "kc"),
    "the right one transposed": (lambda a, b: a @ b.T, "rk", "ck"),
    "by a vector": (lambda a, b: a @ b, "rk", "k"),
    "of a vector": (lambda a, b: a @ b, "k", "kc"),
    "vectors": (lambda a, b: a @ b, "k", "k"),
}


@pytest.fixture(params=usable_cores(platform.machine(), cpu_flags()))
def core(request) -> Iterator[str]:
    """Make every OpenBLAS of this process use the kernels of one core type, in turn all that this CPU can run."""
    before = list(zip(blas._libraries(), blas.cores(), strict=True))
    for library, _ in before:
        blas._select(library, request.param)
    yield request.param
    for library, name in before:
        blas._select(library, name)


@pytest.mark.parametrize("name", PRODUCTS)
def test_addresses_change_no_product_of_any_blas_core(name, core):
    """Products have the same bits at any address with each core's kernels; OpenBLAS chooses the core by the machine."""
    multiply, *axes = PRODUCTS[name]
    for sizes in ((5, 7, 9), (64, 32, 96), (133, 257, 65), (1, 500, 33), (300, 1, 20)):
        size = dict(zip("rkc", sizes, strict=True))
        arrays = [normal(*(size[axis] for axis in of_one)) for of_one in axes]

        def call(new, arrays=arrays):
            return from_numpy(np.asarray(multiply(*(array_of(new(x)) for x in arrays))))

        assert trials_that_differ(call) == [], sizes


def test_addresses_change_no_norm_by_any_blas_core(core):
    """`squared_norm`, a float64 product, has the same bits at any address; without AVX, operands off multiples of 16
    bytes are summed in another order."""
    assert trials_that_differ(CALLS["squared_norm"]) == []
