"""Expected results of collectives, computed by numpy from every rank's input, which each rank can make for itself."""

import mindspore as ms
import numpy as np

TYPES = {
    "float32": ms.float32,
    "float16": ms.float16,
    "bfloat16": ms.bfloat16,
    "int32": ms.int32,
    "int64": ms.int64,
    "bool": ms.bool_,
}
FLOATS = {"float32": 2**20, "float16": 2**11, "bfloat16": 2**8}
"""Floating-point type -> the integer below which all integers are exact in it."""


def numbers(rank: int, shape, kind: str, salt: int = 0) -> np.ndarray:
    """Rank `rank`'s input as float32, int or bool.

    Floats are multiples of 1/8 that are exact in `kind`; their sums are exact in float32 in any order, and need
    rounding in the 16-bit types.
    """
    generator = np.random.default_rng([rank, salt])
    if kind == "bool":
        return generator.random(shape) < 0.5
    if kind in FLOATS:
        return np.asarray(generator.integers(-FLOATS[kind], FLOATS[kind], shape, endpoint=True) / 8, np.float32)
    return np.asarray(generator.integers(-1000, 1000, shape), kind)


def tensor(array: np.ndarray, kind: str) -> ms.Tensor:
    """A tensor of type `kind` with these values."""
    return ms.Tensor(np.asarray(array)).astype(TYPES[kind]) if kind in FLOATS else ms.Tensor(np.asarray(array))


def given(rank: int, shape, kind: str, salt: int = 0) -> ms.Tensor:
    """Rank `rank`'s input (`numbers`) as a tensor of type `kind`."""
    return tensor(numbers(rank, shape, kind, salt), kind)


def values(x: ms.Tensor) -> np.ndarray:
    """A tensor's values as numpy; floating-point ones as float32."""
    return (x.astype(ms.float32) if x.dtype == ms.bfloat16 else x).asnumpy()


def reduced(inputs: list[np.ndarray], op: str, kind: str) -> np.ndarray:
    """The reduction of all ranks' inputs in order of rank; floating-point ones in float32, rounded to `kind` once."""
    fold = {"sum": np.logical_or if kind == "bool" else np.add, "max": np.maximum, "min": np.minimum}[op]
    total = inputs[0]
    for each in inputs[1:]:
        total = fold(total, each)
    return values(tensor(total, kind))


def same(actual: ms.Tensor, expected: np.ndarray, kind: str) -> None:
    """Assert that a tensor has the type `kind` and the expected shape and bits; `kind` holds the expected values
    exactly."""
    assert actual.dtype == TYPES[kind], f"{actual.dtype} is not {kind}"
    assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
    np.testing.assert_array_equal(values(actual), expected)
