"""16-bit tensors: results and gradients come in the type of the input, within its rounding of float32's."""

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from tests.support.kernels import assert_close, linear, normal, run_operator, tensor, values

ROUNDING = {mindspore.float16: 2.0**-11, mindspore.bfloat16: 2.0**-8}


def _operators():
    angles = normal(6, 4, seed=3)
    heads = [normal(6, 2, n, 4, seed=n) for n in (4, 2, 2)]
    x, vector = normal(6, 2, 8), normal(8, seed=1)
    ids = np.array([[1, 4, 1]], np.int32)
    return {
        "layer_norm": (lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), (x, vector, vector)),
        "rms_norm": (lambda x, w: kernels.rms_norm(x, w, 1e-5), (x, vector)),
        "linear": (linear, (x, normal(5, 8), normal(5))),
        "gelu_tanh": (lambda x, b: kernels.bias_activation(x, b, "gelu_tanh"), (x, vector)),
        "swiglu": (lambda x: kernels.bias_activation(x, None, "swiglu"), (x,)),
        "split_qkv": (lambda x: kernels.split_qkv(x, 2, 1, 3), (normal(6, 2, 18),)),
        "rotary": (lambda x: kernels.rotary(x, tensor(angles), tensor(angles)), (heads[0],)),
        "attention": (lambda q, k, v: kernels.attention(q, k, v, scale=0.5), heads),
        "bias_dropout_add": (lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.3, (1,)), (x, vector, x)),
        "embedding": (lambda w: kernels.embedding(from_numpy(ids), w, 0), (normal(5, 8),)),
    }


@pytest.mark.parametrize("name", _operators())
@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [("host", mindspore.float16), ("host", mindspore.bfloat16), ("ops", mindspore.float16)],
    ids=str,
)
def test_sixteen_bits(name, implementation, dtype):
    """bfloat16 with `ops` isn't here: MindSpore's matmul, softmax and exp have no CPU kernel for it."""
    function, inputs = _operators()[name]
    representable = [values(tensor(x, dtype)) for x in inputs]
    kernels.use("host")
    wide = [array for arrays in run_operator(function, representable) for array in arrays]
    kernels.use(implementation)
    narrow = [array for arrays in run_operator(function, representable, dtype) for array in arrays]
    tolerance = (4 if implementation == "host" else 8) * ROUNDING[dtype]
    for actual, expected in zip(narrow, wide, strict=True):
        assert_close(actual, expected, tolerance)


def test_cross_entropy_of_sixteen_bits_is_computed_in_float32():
    logits = tensor(normal(4, 30), mindspore.bfloat16)
    target = from_numpy(np.arange(4, dtype=np.int32))
    narrow, wide = (kernels.softmax_statistics(x, target) for x in (logits, logits.astype(mindspore.float32)))
    for a, b in zip(narrow, wide, strict=True):
        assert a.dtype == mindspore.float32
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
