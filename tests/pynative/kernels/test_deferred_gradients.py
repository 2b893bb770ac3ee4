"""`deferred_weight_gradients`, which puts weight gradients off to a later call; zero-bubble schedules rest on it."""

import gc
import weakref
from functools import partial

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, from_numpy

from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.parameter import ParameterMeta
from pynative.tape.autograd import (
    TapeGradients,
    add_weight_gradient,
    backward,
    deferred_weight_gradients,
    leaf,
    recording,
    take_gradient,
)
from tests.support.kernels import linear, normal, tensor

IDS = np.array([[1, 4, 1, 5]], np.int32)


def parameter_of(*shape: int) -> Parameter:
    """A parameter of this shape whose main_grad holds rubbish, as after an earlier step."""
    parameter = Parameter(tensor(normal(*shape)))
    parameter.meta = ParameterMeta(ShardSpec(shape=shape), main_grad=from_numpy(np.full(shape, 77, np.float32)))
    return parameter


class Network:
    """A network with every kind of parameter that an operator adds gradients to; tied: the embedding's weight is the
    output layer's, too."""

    def __init__(self, tied: bool = False) -> None:
        self.parameters = [parameter_of(*shape) for shape in ((6, 5), (4, 5), (4,), (5, 4), (5,), (5,), (6, 5))]
        if tied:
            self.parameters[-1] = self.parameters[0]
        self.tape_gradients = TapeGradients(self.parameters)

    def __call__(self, x: Tensor) -> Tensor:
        table, first, bias, second, scale, shift, output = self.parameters
        hidden = kernels.embedding(from_numpy(IDS), table, 0) + kernels.layer_norm(x, scale, shift, 1e-5)
        hidden = kernels.bias_activation(linear(hidden, first, None), bias, "gelu_tanh")
        return linear(linear(hidden, second, None), output, None)

    def gradients(self) -> list[np.ndarray]:
        """Copies of the parameters' main_grads, which are marked as empty afterwards."""
        assert not any(parameter.meta.main_grad_is_empty for parameter in self.parameters)
        found = [parameter.meta.main_grad.asnumpy().copy() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.meta.main_grad_is_empty = True
        return found


def run(network: Network, micro_batch: int) -> np.ndarray:
    """Gradient of the input after forward and backward of a micro-batch; parameters' gradients go to main_grad, or are
    put off."""
    x = leaf(tensor(normal(1, 4, 5, seed=micro_batch)))
    with recording():
        y = network(x)
        backward((y,), (tensor(normal(*y.shape, seed=100 + micro_batch)),))
    network.tape_gradients.collect()
    return take_gradient(x).asnumpy()


@pytest.mark.parametrize(("implementation", "tied"), [("host", True), ("ops", False)])
def test_put_off_and_run_equals_the_whole_backward(implementation, tied):
    """Bit for bit: the input's gradient at once, the parameters' when those of two micro-batches are run.

    With `ops` the embedding's gradient comes over the tape, at once, so a tied one would be added up in another order.
    """
    kernels.use(implementation)
    network = Network(tied)
    expected = [run(network, 1), run(network, 2)], network.gradients()
    inputs, queues = [], []
    for micro_batch in (1, 2):
        with deferred_weight_gradients() as deferred:
            inputs.append(run(network, micro_batch))
        queues.append(deferred)
    assert network.parameters[1].meta.main_grad_is_empty, "a weight's gradient was computed before it was asked for"
    for deferred in queues:
        deferred.run()
    np.testing.assert_equal(inputs, expected[0])
    np.testing.assert_equal(network.gradients(), expected[1])


def test_what_was_run_is_let_go():
    """`run` frees each contribution's inputs before the next one is computed."""
    alive = []
    parameter = parameter_of(2)
    kept = [np.ones(2, np.float32) for _ in range(3)]
    watched = [weakref.ref(array) for array in kept]

    def contribution(array, out, accumulate):
        alive.append(sum(ref() is not None for ref in watched))
        return (mindspore.ops.assign_add if accumulate else mindspore.ops.assign)(out, from_numpy(array.copy()))

    with deferred_weight_gradients() as deferred:
        while kept:
            add_weight_gradient(parameter, partial(contribution, kept.pop()))
    deferred.run()
    gc.collect()
    assert alive == [3, 2, 1] and all(ref() is None for ref in watched)
    np.testing.assert_equal(parameter.meta.main_grad.asnumpy(), 3.0)


def test_outside_of_the_block_nothing_is_put_off():
    """After a `with` block that an error ended, the next backward adds weight gradients at once."""
    network = Network()
    with pytest.raises(RuntimeError, match="stop"), deferred_weight_gradients():
        raise RuntimeError("stop")
    run(network, 1)
    assert len(network.gradients()) == len(network.parameters)
