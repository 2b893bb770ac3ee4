"""Optimizer updates and sums over flat buffers, in both implementations, against their formulas in float64."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from pynative.distributed.flat_memory import FlatMemory
from tests.support.kernels import assert_close, normal

pytestmark = pytest.mark.usefixtures("implementation")

SIZE = 40_001  # more than two chunks, the last one shorter


def _state(count: int) -> tuple[list[np.ndarray], list]:
    """Slices in the middle of a flat buffer each, and tensors over them."""
    arrays = [np.abs(normal(SIZE + 2, seed=i)) for i in range(count)]
    return arrays, [from_numpy(array[1:-1]) for array in arrays]


def test_adamw_over_several_steps():
    arrays, tensors = _state(4)
    for array in arrays[2:]:
        array[:] = 0
    p, m, v = arrays[0].astype(np.float64), np.zeros(SIZE + 2), np.zeros(SIZE + 2)
    options = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.1, "grad_scale": 0.25}
    for step, learning_rate in enumerate((0.0, 1e-2, 2e-2, 5e-3), start=1):
        arrays[1][:] = normal(SIZE + 2, seed=step)
        gradient = 0.25 * arrays[1].astype(np.float64)
        kernels.adamw_(*tensors, learning_rate=learning_rate, step=step, **options)
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        p *= 1 - learning_rate * 0.1
        p -= learning_rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-3)
    for array, expected in zip(arrays, (p, arrays[1], m, v), strict=True):
        assert_close(array[1:-1], expected[1:-1], 2e-6)
    assert arrays[0][0] == abs(normal(SIZE + 2, seed=0))[0], "wrote outside of the slice"


def test_sgd_over_several_steps():
    arrays, tensors = _state(3)
    arrays[2][:] = 0
    p, buffer, gradient = arrays[0].astype(np.float64), 0.0, 0.5 * arrays[1].astype(np.float64)
    for _ in range(3):
        kernels.sgd_(*tensors, learning_rate=0.1, momentum=0.9, weight_decay=0.01, grad_scale=0.5)
        buffer = 0.9 * buffer + gradient + 0.01 * p
        p = p - 0.1 * buffer
    assert_close(arrays[0][1:-1], p[1:-1], 2e-6)
    assert_close(arrays[2][1:-1], buffer[1:-1], 2e-6)


UPDATES = {
    "adamw_": (4, {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-3, "step": 2}),
    "sgd_": (3, {"momentum": 0.9}),
}


@pytest.mark.parametrize("gradient_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("model_type", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_rounds_into_the_models_parameters(name, model_type, gradient_type):
    """They are the float32 ones to nearest even; those are as if the gradient had been float32."""
    count, options = UPDATES[name]
    options = {**options, "learning_rate": 1e-2, "weight_decay": 0.1, "grad_scale": 0.25}
    (_, plain), (_, mixed) = _state(count), _state(count)
    gradient = mixed[1].astype(getattr(ms, gradient_type))
    model = FlatMemory(SIZE + 2, model_type)
    plain[1] = gradient.astype(ms.float32)
    getattr(kernels, name)(*plain, **options)
    mixed[1] = gradient
    getattr(kernels, name)(*mixed, **options, model_param=model.span(1, SIZE + 1))
    for found, expected in zip(mixed, plain, strict=True):
        np.testing.assert_array_equal(found.astype(ms.float32).asnumpy(), expected.asnumpy())
    rounded = model.span(0, SIZE + 2).astype(ms.float32).asnumpy()
    np.testing.assert_array_equal(rounded[1:-1], plain[0].astype(getattr(ms, model_type)).astype(ms.float32).asnumpy())
    assert rounded[0] == rounded[-1] == 0, "wrote outside of the slice"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arithmetic_in_every_type(dtype):
    """A gradient buffer of any type is filled, added to from any, and its squares are summed."""
    x = FlatMemory(7, dtype).span(0, 7)
    kernels.fill_(x, 1.5)
    for other in ("float32", "float16", "bfloat16"):
        y = FlatMemory(7, other).span(0, 7)
        kernels.fill_(y, 0.25)
        kernels.add_(x, y)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 2.25, np.float32))
    assert kernels.squared_norm(x) == 7 * 2.25**2
    kernels.scale_(x, 1 / 3)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 0.75, np.float32))


def test_in_place_arithmetic():
    (x, y), (x_tensor, y_tensor) = _state(2)
    before = x.copy()
    kernels.add_(x_tensor, y_tensor)
    np.testing.assert_array_equal(x[1:-1], before[1:-1] + y[1:-1])
    kernels.fill_(x_tensor, -2.0)
    assert (x[1:-1] == -2).all()
    assert x[0] == before[0]


def test_squared_norm():
    (x,), (x_tensor,) = _state(1)
    assert kernels.squared_norm(x_tensor) == pytest.approx(float((x[1:-1].astype(np.float64) ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize(("largest", "is_finite"), [(1e30, True), (np.inf, False), (-np.inf, False), (np.nan, False)])
def test_squared_norm_is_finite_where_all_elements_are(largest, is_finite):
    """Although the square of the largest, or the sum of squares, is beyond float32."""
    (x,), (x_tensor,) = _state(1)
    x[SIZE // 2] = largest
    found = kernels.squared_norm(x_tensor)
    assert np.isfinite(found) == is_finite
    if is_finite:
        assert found == pytest.approx(float(largest) ** 2, rel=1e-6)


def test_weight_gradients_into_a_given_tensor():
    """`out` is filled in place, whatever it held; with `accumulate` that is added to."""
    x, dy = normal(6, 2, 5), normal(6, 2, 3, seed=1)
    weight_out, bias_out = np.full((3, 5), 9, np.float32), np.full(3, 9, np.float32)
    kernels.linear_weight_gradient(from_numpy(dy), from_numpy(x), out=from_numpy(weight_out))
    kernels.bias_gradient(from_numpy(dy), out=from_numpy(bias_out))
    assert_close(weight_out, np.einsum("sbo,sbi->oi", dy, x), 1e-6)
    assert_close(bias_out, dy.sum((0, 1)), 1e-6)
    kernels.linear_weight_gradient(from_numpy(dy), from_numpy(x), out=from_numpy(weight_out), accumulate=True)
    kernels.bias_gradient(from_numpy(dy), out=from_numpy(bias_out), accumulate=True)
    assert_close(weight_out, 2 * np.einsum("sbo,sbi->oi", dy, x), 1e-6)
    assert_close(bias_out, 2 * dy.sum((0, 1)), 1e-6)
