"""Flat buffers of parameters and gradients: a buffer for each type, whose memory the model's parameters share."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from parallel_core.config import OptimizerConfig
from parallel_core.config.gradient import GradientConfig
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer import get_optimizer
from pynative.parameter import as_type, name_parameters, write
from tests.support.engine import rank_of_a_job

TYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}


class OfAllTypes(nn.Cell):
    """A user's cell with a parameter of each floating-point type, named by it."""

    def __init__(self, **more: Tensor) -> None:
        super().__init__()
        values = {name: as_type(np.full((3, 5), 1.0, np.float32), dtype) for name, dtype in TYPES.items()}
        for name, value in (values | more).items():
            setattr(self, name, Parameter(value))


def buffers_of(model: nn.Cell) -> ParamAndGradBuffers:
    with rank_of_a_job(0, 1):
        return ParamAndGradBuffers(name_parameters(model), GradientConfig(accumulate_allreduce_grads_in_fp32=True))


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lion"])
def test_parameters_of_every_type_are_trained(optimizer):
    """A buffer for each parameter type, with float32 gradients; an update of the buffer changes the parameter that the
    model computes with."""
    model = OfAllTypes()
    buffers = buffers_of(model)
    assert [(b.plan.parameter_type, b.plan.gradient_type) for b in buffers] == [(name, "float32") for name in TYPES]
    buffers.empty_gradients()
    for name, dtype in TYPES.items():
        parameter = getattr(model, name)
        assert parameter.dtype == dtype and parameter.main_grad.dtype == ms.float32
        parameter.main_grad.asnumpy()[...] = 1.0
        parameter.meta.main_grad_is_empty = False
    config = OptimizerConfig(optimizer_type=optimizer, weight_decay=0.0)
    get_optimizer(config, buffers).step(0.125, 0.0, 1.0)
    for name in TYPES:
        np.testing.assert_allclose(getattr(model, name).astype(ms.float32).asnumpy(), 0.875, rtol=2**-8, err_msg=name)


def test_values_stay_when_parameters_move_in():
    """Parameters of each floating-point type keep their values when they move into flat buffers."""
    model = OfAllTypes()
    for i, name in enumerate(TYPES):
        write(getattr(model, name), np.arange(15).reshape(3, 5) + i)
    for i, buffer in enumerate(buffers_of(model)):
        found = buffer.parameters.span(0, 15).astype(ms.float32).asnumpy()
        np.testing.assert_array_equal(found, np.arange(15) + i)


def test_an_unused_parameter_has_gradient_zero():
    """`zero_unused_gradients` clears the gradients that no backward wrote in this step, so last step's are not applied
    again."""
    buffers = buffers_of(OfAllTypes())
    for _, parameter in buffers.entries:
        parameter.main_grad.asnumpy()[...] = 7.0
    buffers.empty_gradients()
    buffers.zero_unused_gradients()
    assert not any(parameter.main_grad.asnumpy().any() for _, parameter in buffers.entries)


@pytest.mark.parametrize("name", TYPES)
def test_a_parameter_that_left_the_buffer_is_named(name):
    """set_data gives a parameter other memory than its buffer's, where no update would reach it: an error names it."""
    model = OfAllTypes()
    buffers = buffers_of(model)
    getattr(model, name).set_data(as_type(np.zeros((3, 5), np.float32), TYPES[name]))
    with pytest.raises(ValueError, match=rf"parameter {name}: left the memory that is trained.*load_weights"):
        buffers.empty_gradients()


def test_a_type_that_is_not_trained_is_named():
    """Flat buffers refuse a parameter of integers with a ValueError that gives its name and type."""
    with pytest.raises(ValueError, match="parameter ids: is of type int32"):
        buffers_of(OfAllTypes(ids=Tensor(np.arange(3, dtype=np.int32))))
