"""Gradients of parameters with a `main_grad`: added there over micro-batches, in its type, and nowhere else."""

import tracemalloc

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, from_numpy

from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.kernels.host import linear as host_linear
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.engine.numpy_engine import NumpyEngine, products
from pynative.parameter import ParameterMeta
from pynative.tape import autograd
from pynative.tape.autograd import TapeGradients, backward, leaf, recording
from tests.support.kernels import assert_close, linear, normal, run_operator, tensor, upstream

IDS = np.array([[1, 4, 1, 7]], np.int32)

OPERATORS = {
    "linear": (linear, [(3, 2, 5), (4, 5), (4,)]),
    "layer_norm": (lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), [(3, 2, 5), (5,), (5,)]),
    "rms_norm": (lambda x, w: kernels.rms_norm(x, w, 1e-5), [(3, 2, 5), (5,)]),
    "bias_activation": (lambda x, b: kernels.bias_activation(x, b, "gelu_tanh"), [(3, 2, 5), (5,)]),
    "bias_dropout_add": (lambda x, b: kernels.bias_dropout_add(x, b, x), [(3, 2, 5), (5,)]),
    "embedding": (lambda x, w: kernels.embedding(from_numpy(IDS), w, 0) + x * 1.0, [(1, 4, 5), (6, 5)]),
}


def _buffered(shape, seed, dtype):
    """(parameter, its main_grad): a piece of a flat float32 buffer full of rubbish, as after an optimizer step."""
    buffer = np.full(int(np.prod(shape)) + 2, 77, np.float32)
    parameter = Parameter(tensor(normal(*shape, seed=seed), dtype))
    parameter.meta = ParameterMeta(ShardSpec(shape=shape), main_grad=from_numpy(buffer[1:-1].reshape(shape)))
    return parameter, buffer


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_two_micro_batches_add_up(name, dtype):
    """Gradients of two micro-batches add up in `main_grad`, whatever was there before, and not beside it."""
    function, (x_shape, *shapes) = OPERATORS[name]
    parameters = [_buffered(shape, i, dtype) for i, shape in enumerate(shapes)]
    expected = [0.0 for _ in shapes]
    for micro_batch in (1, 2):
        x = normal(*x_shape, seed=micro_batch)
        with recording():
            y = function(leaf(tensor(x, dtype)), *(p for p, _ in parameters))
            backward((y,), (tensor(upstream(y.shape, 0), dtype),))
        arrays = [x, *(p.astype(mindspore.float32).asnumpy() for p, _ in parameters)]
        gradients = run_operator(function, arrays, dtype)[1][1:]
        expected = [total + gradient for total, gradient in zip(expected, gradients, strict=True)]
    for (parameter, buffer), total in zip(parameters, expected, strict=True):
        assert parameter._grad is None and not parameter.meta.main_grad_is_empty
        assert_close(buffer[1:-1].reshape(parameter.shape), total, 1e-6 if dtype == mindspore.float32 else 2**-8)
        assert buffer[0] == buffer[-1] == 77, "a neighbour in the flat buffer was written to"


def test_ops_leave_gradients_to_the_tape():
    """With `ops` gradients come to `_grad`, and `TapeGradients` adds them to `main_grad`."""
    kernels.use("ops")
    function, (x_shape, *shapes) = OPERATORS["layer_norm"]
    parameters = [_buffered(shape, i, mindspore.float32)[0] for i, shape in enumerate(shapes)]
    x, tape_gradients = normal(*x_shape), TapeGradients(parameters)
    with recording():
        y = function(leaf(tensor(x)), *parameters)
        backward((y,), (tensor(upstream(y.shape, 0)),))
    tape_gradients.collect()
    kernels.use("host")
    expected = run_operator(function, [x, *(p.asnumpy() for p in parameters)])[1][1:]
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert_close(parameter.meta.main_grad.asnumpy(), gradient, 1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_later_micro_batches_add_in_place(name, monkeypatch):
    """An operator adds to `main_grad` itself: assign_add is never called, and `_grad` stays empty."""
    function, (x_shape, *shapes) = OPERATORS[name]
    parameters = [_buffered(shape, i, mindspore.float32)[0] for i, shape in enumerate(shapes)]
    monkeypatch.setattr(autograd.in_place, "assign_add", None)
    for micro_batch in (1, 2, 3):
        with recording():
            y = function(leaf(tensor(normal(*x_shape, seed=micro_batch))), *parameters)
            backward((y,), (tensor(upstream(y.shape, 0)),))
    assert all(parameter._grad is None for parameter in parameters)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_weight_gradients_add_up_in_blocks(threads):
    """A weight gradient of several blocks of scratch memory, the last one shorter, is added right."""
    kernels.use("host", threads)
    rows = products.SCRATCH_BYTES // (4 * 700) * 3 + 50
    x, dy, out = normal(3, 700), normal(3, rows, seed=1), normal(rows, 700, seed=2)
    expected = out.astype(np.float64) + dy.T.astype(np.float64) @ x
    kernels.linear_weight_gradient(tensor(dy), tensor(x), out=from_numpy(out), accumulate=True)
    assert_close(out, expected, 1e-6)


@pytest.mark.parametrize("engine", [NumpyEngine(), ENGINE], ids=lambda engine: type(engine).__name__)
def test_a_later_micro_batch_makes_no_gradient_of_its_own(engine, monkeypatch):
    """Adding a later micro-batch's weight gradient takes at most one block of temporary memory, not a whole
    gradient."""
    monkeypatch.setattr(host_linear, "ENGINE", engine)
    x, dy, out = normal(3, 1024), normal(3, 8192, seed=1), normal(8192, 1024, seed=2)
    arguments = tensor(dy), tensor(x), from_numpy(out)
    tracemalloc.start()
    kernels.linear_weight_gradient(*arguments, accumulate=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * products.SCRATCH_BYTES < out.nbytes / 4
