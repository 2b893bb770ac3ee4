"""oneDNN's gemm for bfloat16, and the engine's products where it is missing."""

from inspect import unwrap
from types import SimpleNamespace

import numpy as np
import pytest

from pynative.dtypes import BFLOAT16
from pynative.kernels.host.engine import ENGINE
from pynative.memory.rounding import widened
from pynative.onednn import gemm
from pynative.onednn.library import library
from tests.support.kernels import normal

pytestmark = pytest.mark.skipif(library() is None, reason="no oneDNN here")


@pytest.mark.parametrize("missing", ["the function", "kernels of this CPU"])
def test_where_it_is_missing_primitives_multiply(missing, monkeypatch):
    """Without the exported function, or with ONEDNN_MAX_CPU_ISA=AVX2, where there is only a slow reference: the
    engine's product, by primitives, is right."""
    available = unwrap(gemm.is_available)  # unwrapped: asks again instead of using the cached answer
    if missing == "the function":
        monkeypatch.setattr(gemm, "library", SimpleNamespace)
    else:
        monkeypatch.setattr(gemm, "product", lambda *layouts: None)
    assert not available()
    monkeypatch.setattr(gemm, "is_available", available)
    dy, x = (normal(600, columns, seed=columns).astype(BFLOAT16) for columns in (64, 256))
    out = np.empty((64, 256), np.float32)
    ENGINE.matmul(dy.T, x, out)
    np.testing.assert_allclose(out, widened(dy).T @ widened(x), atol=1e-3)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_product_over_no_rows_is_zeros(accumulate):
    """With k = 0 the product is zeros, which are written, or added to what `out` holds."""
    out = np.full((3, 4), 1.0 if accumulate else np.nan, np.float32)
    gemm.transposed_product(np.empty((0, 3), BFLOAT16), np.empty((0, 4), BFLOAT16), out, accumulate)
    np.testing.assert_array_equal(out, float(accumulate))
