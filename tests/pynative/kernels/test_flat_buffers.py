"""Optimizer updates and sums over flat buffers, in both implementations, against their formulas in float64."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.buffers.layout import Span
from pynative import kernels
from pynative.distributed.flat_memory import FlatMemory
from pynative.kernels.contract.flat_buffers import AdamStep
from tests.support import update_rules
from tests.support.kernels import assert_close, normal

pytestmark = pytest.mark.usefixtures("implementation")

SIZE = 40_001  # more than two chunks, the last one shorter


def _state(count: int) -> tuple[list[np.ndarray], list]:
    """(arrays, tensors over all but the first and last element of each), so that writing beyond a slice would
    be seen."""
    arrays = [np.abs(normal(SIZE + 2, seed=i)) for i in range(count)]
    return arrays, [from_numpy(array[1:-1]) for array in arrays]


@pytest.mark.parametrize("decoupled", [True, False], ids=["AdamW", "L2"])
@pytest.mark.parametrize("corrected", [True, False], ids=["corrected", "uncorrected"])
def test_adam_over_several_steps(decoupled, corrected):
    """AdamW, and Adam with L2 regularisation, each with and without bias corrections, over several steps."""
    arrays, tensors = _state(4)
    for array in arrays[2:]:
        array[:] = 0
    p, rule = arrays[0].astype(np.float64), update_rules.Adam(decoupled=decoupled, corrected=corrected)
    for step, learning_rate in enumerate((0.0, 1e-2, 2e-2, 5e-3), start=1):
        arrays[1][:] = normal(SIZE + 2, seed=step)
        kernels.adam_(*tensors, AdamStep(learning_rate, 0.9, 0.95, 1e-3, 0.1, step, 0.25, decoupled, corrected))
        p = rule(p, 0.25 * arrays[1].astype(np.float64), learning_rate, 0.1)
    for array, expected in zip(arrays, (p, arrays[1], rule.m, rule.v), strict=True):
        assert_close(array[1:-1], expected[1:-1], 2e-6)
    assert arrays[0][0] == abs(normal(SIZE + 2, seed=0))[0], "wrote outside of the slice"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_averages_in_16_bits_are_rounded_once_a_step(dtype):
    """Adam with 16-bit averages: each step computes in float32 from the rounded averages, and rounds the new
    ones once."""
    (param, gradient), (param_tensor, gradient_tensor) = _state(2)
    averages = [FlatMemory([Span(0, SIZE)], dtype).span(0, SIZE) for _ in range(2)]
    for step in range(1, 4):
        gradient[:] = normal(SIZE + 2, seed=step)
        exact = [from_numpy(param[1:-1].copy()), gradient_tensor, *(x.astype(ms.float32) for x in averages)]
        settings = AdamStep(1e-2, 0.9, 0.95, 1e-3, 0.1, step)
        kernels.adam_(*exact, settings)
        kernels.adam_(param_tensor, gradient_tensor, *averages, settings)
        np.testing.assert_array_equal(param[1:-1], exact[0].asnumpy())
        for rounded, wide in zip(averages, exact[2:], strict=True):
            expected = wide.astype(rounded.dtype).astype(ms.float32).asnumpy()
            np.testing.assert_array_equal(rounded.astype(ms.float32).asnumpy(), expected)


def momentum(_, param, grad, buffer):
    """A formula for `update_`: (new parameter, new buffer) of gradient descent with momentum 0.9, weight decay 0.01 and
    learning rate 0.1."""
    buffer = buffer * 0.9 + grad + param * 0.01
    return param - buffer * 0.1, buffer


def test_an_updates_formula_over_several_steps():
    """`update_` applies a formula chunk by chunk, each with its own operands and the state of the step before."""
    arrays, tensors = _state(3)
    arrays[2][:] = 0
    p, gradient, rule = arrays[0].astype(np.float64), 0.5 * arrays[1].astype(np.float64), update_rules.Sgd()
    for _ in range(3):
        kernels.update_(momentum, *tensors[:2], tensors[2:], 0.5)
        p = rule(p, gradient, 0.1, 0.01)
    assert_close(arrays[0][1:-1], p[1:-1], 2e-6)
    assert_close(arrays[2][1:-1], rule.buffer[1:-1], 2e-6)


def test_functions_that_a_formula_may_call():
    """`update_` writes the result of a formula that calls `sign` and `sqrt` into the parameters' slice."""
    (param, _), tensors = _state(2)
    before = param[1:-1].copy()
    kernels.update_(lambda f, p, g: (f.sign(g) * f.sqrt(p),), *tensors, [], -1.0)
    assert_close(param[1:-1], -np.sqrt(before), 1e-6)


def _adam(*tensors, model_param=None):
    kernels.adam_(*tensors, AdamStep(1e-2, 0.9, 0.95, 1e-3, 0.1, 2, 0.25), model_param)


def _update(param, grad, *moments, model_param=None):
    kernels.update_(momentum, param, grad, moments, 0.25, model_param)


def _combine(*tensors, model_param=None):
    kernels.combine_(*tensors, 0.9, 0.25, model_param)


UPDATES = {"adam_": (4, _adam), "update_": (3, _update), "combine_": (2, _combine)}


@pytest.mark.parametrize("gradient_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("model_type", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_rounds_into_the_models_parameters(name, model_type, gradient_type):
    """The 16-bit parameters are the updated float32 ones, rounded to nearest even; those are as with a float32
    gradient."""
    count, update = UPDATES[name]
    (_, plain), (_, mixed) = _state(count), _state(count)
    gradient = mixed[1].astype(getattr(ms, gradient_type))
    model = FlatMemory([Span(0, SIZE + 2)], model_type)
    plain[1] = gradient.astype(ms.float32)
    update(*plain)
    mixed[1] = gradient
    update(*mixed, model_param=model.span(1, SIZE + 1))
    for found, expected in zip(mixed, plain, strict=True):
        np.testing.assert_array_equal(found.astype(ms.float32).asnumpy(), expected.asnumpy())
    rounded = model.span(0, SIZE + 2).astype(ms.float32).asnumpy()
    np.testing.assert_array_equal(rounded[1:-1], plain[0].astype(getattr(ms, model_type)).astype(ms.float32).asnumpy())
    assert rounded[0] == rounded[-1] == 0, "wrote outside of the slice"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arithmetic_in_every_type(dtype):
    """Buffers of each type are filled, added to from each type, scaled, clamped and combined, and their squares are
    summed; combining with factor 0 drops even a NaN."""
    x = FlatMemory([Span(0, 7)], dtype).span(0, 7)
    kernels.fill_(x, 1.5)
    for other in ("float32", "float16", "bfloat16"):
        y = FlatMemory([Span(0, 7)], other).span(0, 7)
        kernels.fill_(y, 0.25)
        kernels.add_(x, y)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 2.25, np.float32))
    assert kernels.squared_norm(x) == 7 * 2.25**2
    kernels.scale_(x, 1 / 3)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 0.75, np.float32))
    kernels.clamp_(x, 0.5)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 0.5, np.float32))
    kernels.combine_(x, y, -2.0, 1.0)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, -0.75, np.float32))
    kernels.clamp_(x, 0.25)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, -0.25, np.float32))
    kernels.fill_(x, np.nan)
    kernels.combine_(x, y, 0.0, 2.0)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), np.full(7, 0.5, np.float32))


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.float16], ids=str)
def test_clamped_values_that_are_not_finite(dtype):
    """A clamp brings infinity to the limit and leaves NaN, so that an error is still seen behind it."""
    x = from_numpy(np.array([np.nan, np.inf, -np.inf, 3.0, -0.25], np.float32)).astype(dtype)
    kernels.clamp_(x, 1.0)
    expected = np.array([np.nan, 1.0, -1.0, 1.0, -0.25], np.float32)
    np.testing.assert_array_equal(x.astype(ms.float32).asnumpy(), expected)


def test_in_place_arithmetic():
    """`add_` and `fill_` change a slice of a flat buffer, and not the element before it."""
    (x, y), (x_tensor, y_tensor) = _state(2)
    before = x.copy()
    kernels.add_(x_tensor, y_tensor)
    np.testing.assert_array_equal(x[1:-1], before[1:-1] + y[1:-1])
    kernels.fill_(x_tensor, -2.0)
    assert (x[1:-1] == -2).all()
    assert x[0] == before[0]


def test_squared_norm():
    """`squared_norm` of a slice is the sum of its squares in float64, to 1e-6."""
    (x,), (x_tensor,) = _state(1)
    assert kernels.squared_norm(x_tensor) == pytest.approx(float((x[1:-1].astype(np.float64) ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize(("largest", "is_finite"), [(1e30, True), (np.inf, False), (-np.inf, False), (np.nan, False)])
def test_squared_norm_is_finite_where_all_elements_are(largest, is_finite):
    """The sum of squares is finite for finite elements even if it is beyond float32; infinite or NaN elements show."""
    (x,), (x_tensor,) = _state(1)
    x[SIZE // 2] = largest
    found = kernels.squared_norm(x_tensor)
    assert np.isfinite(found) == is_finite == kernels.all_finite(x_tensor).asnumpy().item()
    if is_finite:
        assert found == pytest.approx(float(largest) ** 2, rel=1e-6)


def test_weight_gradients_into_a_given_tensor():
    """`out` is filled whatever it held; with `accumulate` the gradient is added to it."""
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
