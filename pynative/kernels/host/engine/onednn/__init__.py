"""The engine of oneDNN's primitives, where the library is there; numpy computes the rest."""

import math
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.system.blas import cpu_flags, multiplies_bfloat16
from pynative.dtypes import BFLOAT16
from pynative.kernels.host.engine.numpy_engine import NumpyEngine
from pynative.kernels.host.engine.onednn import activations, scores, sweeps
from pynative.memory.rounding import convert, put, widened
from pynative.onednn import gemm, primitives
from pynative.onednn.layouts import layout_of, row_layout
from pynative.onednn.library import library
from pynative.onednn.primitives import SUM

FLOAT32_PRODUCTS = "amx_tile" not in cpu_flags()
"""Whether float32 products are oneDNN's, too. One core, 2048 x 512 x 2048, GFLOP/s of oneDNN and OpenBLAS: 200 and 190
on AMD family 26; 150 and 189 on Intel model 207, which has AMX. A function of the CPU alone, so that all ranks decide
alike. Those of several matrices are oneDNN's anyway: one call instead of one for each."""

BFLOAT16_PRODUCTS = multiplies_bfloat16(cpu_flags())

GEMM_ROWS, GEMM_COLUMNS = math.inf if "amx_tile" in cpu_flags() else 512, 256
"""Gradients of bfloat16 weights are `onednn.gemm`'s where they sum over so many rows and have so many columns; threads
share out neither. On AMD family 26 it takes 0.96 of a primitive's time with 2,048 rows, 0.9 where they are added to
what is there, less with more rows; with 300 the same. AMX was not measured."""


def is_available() -> bool:
    """Whether oneDNN's library can be loaded."""
    return library() is not None


P = ParamSpec("P")


def _or_numpy(primitive: Callable[P, bool], numpys: Callable[P, None]) -> Callable[P, None]:
    """A function that calls the primitive, and numpy's where that returns False."""

    def either(*arguments: P.args, **options: P.kwargs) -> None:
        if not primitive(*arguments, **options):
            numpys(*arguments, **options)

    return either


class OneDnnEngine(NumpyEngine):
    """An engine, as the protocol `interface.Engine` describes it, that computes with oneDNN, and with numpy where
    oneDNN has no fast primitive or is not used."""

    name = "oneDNN"

    @staticmethod
    def matmul(left: Array, right: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
        primitive = None
        if bias is None and _is_long_transpose(left, right, out):
            return gemm.transposed_product(left.T, right, out, accumulate)
        if left.ndim > 2 and left.shape[-1] == 1:  # oneDNN 3.10 assumes that matrices of one row are contiguous
            right = np.ascontiguousarray(right)
        if _multiplies(left):
            primitive = primitives.product(
                layout_of(left), layout_of(right), layout_of(out),
                None if bias is None else row_layout(bias), (SUM,) if accumulate else (),
            )  # fmt: skip
        if primitive is None and left.dtype == np.float32:
            NumpyEngine.matmul(left, right, out, bias, accumulate)
        elif primitive is None:
            _widened_product(left, right, out, bias, accumulate)
        elif bias is None:
            primitive(left, right, out)
        else:
            primitive(left, right, out, bias)

    @staticmethod
    def prepared_matmul(left: Array, right: Array, out: Array) -> Callable[[], object]:
        primitive = primitives.product(*map(layout_of, (left, right, out))) if _multiplies(left) else None
        return (NumpyEngine.prepared_matmul if primitive is None else primitive.prepared)(left, right, out)

    @staticmethod
    def norm(
        x: Array, scale: Array, shift: Array | None, epsilon: float, out: Array, mean: Array | None, inverse: Array
    ) -> None:
        layouts = layout_of(x), layout_of(scale), layout_of(inverse)
        primitive = primitives.norm(*layouts, float(epsilon), mean is not None, shift is not None)
        if primitive is None and x.dtype == np.float32:
            return NumpyEngine.norm(x, scale, shift, epsilon, out, mean, inverse)
        if primitive is None:
            wide = np.empty(out.shape, np.float32)
            OneDnnEngine.norm(widened(x), scale, shift, epsilon, wide, mean, inverse)
            return convert(wide, out)
        variance = np.empty_like(inverse)
        given = (x, out, mean, variance, scale, shift)
        primitive(*(array for array in given if array is not None))
        np.divide(1, np.sqrt(variance + np.float32(epsilon)), out=inverse)

    @staticmethod
    def norm_gradient(
        dy: Array, x: Array, scale: Array, mean: Array | None, inverse: Array,
        dx: Array, scale_gradient: Array, shift_gradient: Array | None,
    ) -> None:  # fmt: skip
        layouts = layout_of(x), layout_of(scale), layout_of(inverse)
        # Epsilon is 0 because the variance is taken as 1 / inverse^2, which has epsilon in it.
        primitive = primitives.norm_gradient(*layouts, 0.0, mean is not None, shift_gradient is not None)
        if primitive is None and x.dtype == np.float32:
            return NumpyEngine.norm_gradient(dy, x, scale, mean, inverse, dx, scale_gradient, shift_gradient)
        # the mean's term must be added to dx before dx is rounded
        if x.dtype != np.float32 and (primitive is None or mean is None):
            wide = np.empty(dx.shape, np.float32)
            OneDnnEngine.norm_gradient(
                widened(dy), widened(x), scale, mean, inverse, wide, scale_gradient, shift_gradient
            )
            return convert(wide, dx)
        assert primitive is not None
        variance = 1 / np.square(inverse)
        given = (x, dy, dx, mean, variance, scale, scale_gradient, shift_gradient)
        primitive(*(array for array in given if array is not None))
        if mean is None:
            _add_mean_gradient(dy, scale, inverse, dx)

    @staticmethod
    def activation_gradient(
        name: str, x: Array, bias: Array | None, dy: Array, dx: Array, bias_gradient: Array | None
    ) -> None:
        if not activations.gradient(name, x, bias, dy, dx):
            NumpyEngine.activation_gradient(name, x, bias, dy, dx, bias_gradient)
        elif bias_gradient is not None:
            NumpyEngine.sum_rows(dx, bias_gradient)

    @staticmethod
    def product_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
        return dtype if dtype == BFLOAT16 and BFLOAT16_PRODUCTS else NumpyEngine.product_type(dtype)

    activation = staticmethod(_or_numpy(activations.activation, NumpyEngine.activation))
    add = staticmethod(_or_numpy(sweeps.add, NumpyEngine.add))
    adamw = staticmethod(_or_numpy(sweeps.adamw, NumpyEngine.adamw))
    score_exponentials = staticmethod(_or_numpy(scores.score_exponentials, NumpyEngine.score_exponentials))
    soft_cap_slope = staticmethod(_or_numpy(scores.soft_cap_slope, NumpyEngine.soft_cap_slope))
    score_gradient = staticmethod(_or_numpy(scores.score_gradient, NumpyEngine.score_gradient))
    logit_statistics = staticmethod(sweeps.logit_statistics)
    weighted_exponentials = staticmethod(sweeps.weighted_exponentials)


def _multiplies(left: Array) -> bool:
    """Whether products of matrices of this type and number of axes are oneDNN's."""
    if left.dtype == np.float32:
        return FLOAT32_PRODUCTS or left.ndim > 2
    return BFLOAT16_PRODUCTS if left.dtype == BFLOAT16 else True


def _is_long_transpose(left: Array, right: Array, out: Array) -> bool:
    """Whether `onednn.gemm` computes the product: the gradient of a bfloat16 weight over many rows (GEMM_ROWS,
    GEMM_COLUMNS)."""
    if left.ndim > 2 or left.dtype != BFLOAT16 or not BFLOAT16_PRODUCTS:
        return False
    if len(right) < GEMM_ROWS or out.shape[1] < GEMM_COLUMNS:
        return False
    has_dense_rows = all(x.strides[1] == x.itemsize for x in (left.T, right, out))
    return out.dtype == np.float32 and has_dense_rows and gemm.is_available()


def _widened_product(left: Array, right: Array, out: Array, bias: Array | None, accumulate: bool) -> None:
    """`Engine.matmul` of 16-bit operands, widened to float32 first."""
    left, right, bias = widened(left), widened(right), None if bias is None else widened(bias)
    if out.dtype == np.float32:
        return OneDnnEngine.matmul(left, right, out, bias, accumulate)
    result = np.empty(out.shape, np.float32)
    OneDnnEngine.matmul(left, right, result, bias)
    return put(result, out, accumulate)


def _add_mean_gradient(dy: Array, scale: Array, inverse: Array, dx: Array) -> None:
    """dx += inverse mean(dy scale) by rows: oneDNN 3.10 subtracts it, as if RMS norm centred its rows."""
    means = np.matmul(dy, scale)
    means *= inverse
    means /= np.float32(len(scale))
    dx += means[:, None]
