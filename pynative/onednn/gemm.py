"""oneDNN's BLAS-like matrix product of bfloat16 matrices into float32, which needs no primitive."""

import ctypes
from typing import Any

from parallel_core.numerics.dtypes import Array
from pynative.onednn.library import OneDnnError, Type, address_of, dense, function, library, once
from pynative.onednn.primitives import product

_NAME = "gemm_bf16bf16f32"
_SIZE, _FACTOR, _MATRIX = ctypes.c_int64, ctypes.c_float, (ctypes.c_void_p, ctypes.c_int64)


@once
def _gemm() -> Any:
    """The C function dnnl_gemm_bf16bf16f32(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), of row-major
    matrices."""
    gemm: Any = function(_NAME)
    gemm.argtypes = (ctypes.c_char,) * 2 + (_SIZE,) * 3 + (_FACTOR, *_MATRIX, *_MATRIX, _FACTOR, *_MATRIX)
    return gemm


@once
def is_available() -> bool:
    """Whether the library exports dnnl_gemm_bf16bf16f32, which its headers do not promise, and has bfloat16 kernels for
    this CPU: with ONEDNN_MAX_CPU_ISA=AVX2 it has none, and computes entry by entry, a hundred times slower."""
    square, result = dense(Type.BFLOAT16, 32, 32), dense(Type.FLOAT32, 32, 32)
    return hasattr(library(), f"dnnl_{_NAME}") and product(square, square, result) is not None


ROWS = 128
"""Rows (of k) that one call sums over; it allocates packed copies of them. More at once are a few per cent faster, but
larger copies leave holes between the tensors of a training step: 1% more memory with 256 rows, none with 128."""


def transposed_product(left: Array, right: Array, out: Array, accumulate: bool) -> None:
    """Write left^T right, float32 [m, n], into `out`, or with `accumulate` add it to `out`; left [k, m] and right
    [k, n] are bfloat16. With k = 0 the product is zeros.

    Rows may have gaps between them. Raises AssertionError for gaps within a row, OneDnnError for a status of failure;
    both only for k above 0. Only where `is_available`.
    """
    if not len(left):
        out[...] = out if accumulate else 0
        return
    assert all(matrix.strides[1] == matrix.itemsize for matrix in (left, right, out)), "gaps within rows"
    leading = [matrix.strides[0] // matrix.itemsize for matrix in (left, right, out)]
    for start in range(0, len(left), ROWS):
        addresses = [address_of(matrix) for matrix in (left[start:], right[start:], out)]
        a, b, c = zip(addresses, leading, strict=True)
        rows, factor = min(ROWS, len(left) - start), float(accumulate or start > 0)
        status = _gemm()(b"T", b"N", *out.shape, rows, 1.0, *a, *b, factor, *c)
        if status:
            raise OneDnnError(f"dnnl_{_NAME} returned status {status}")
