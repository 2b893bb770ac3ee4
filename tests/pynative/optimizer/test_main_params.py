"""main_param, the float32 values of 16-bit parameters: updated, rounded into the model after each step, and taken from
it when a script overwrites it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn

from parallel_core.config import OptimizerConfig
from parallel_core.config.gradient import GradientConfig
from pynative.checkpointing import load_weights
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer import FlatOptimizer, get_optimizer
from pynative.parameter import as_type, name_parameters
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job, rank_of_a_job

START = np.linspace(0.5, 1.0, 15, dtype=np.float32).reshape(3, 5)


class Weight(nn.Cell):
    """A user's cell with one parameter of this type."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.weight = Parameter(as_type(START, getattr(ms, dtype)))


def optimizer_of(model: nn.Cell, kind: str = "adam") -> FlatOptimizer:
    with rank_of_a_job(0, 1):
        buffers = ParamAndGradBuffers(name_parameters(model), GradientConfig())
    return get_optimizer(OptimizerConfig(optimizer_type=kind, weight_decay=0.0), buffers)


def step(optimizer: FlatOptimizer, gradient: float, learning_rate: float = 1e-4) -> None:
    for _, parameter in optimizer.buffers.entries:
        parameter.main_grad.asnumpy()[...] = gradient
    optimizer.step(learning_rate, 0.0, 1.0)


def values(tensor) -> np.ndarray:
    return tensor.astype(ms.float32).asnumpy().copy()


def is_rounded(parameter) -> bool:
    """Whether the model's parameter equals its main_param rounded to nearest even, to the bit."""
    return np.array_equal(values(parameter), values(parameter.main_param.astype(parameter.dtype)))


@pytest.mark.parametrize("kind", ["adam", "sgd", "lion"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_steps_add_up(dtype, kind):
    """Steps too small for 16 bits: after 40 the main_param is a float32 run's parameter to the bit, and the model has
    moved."""
    model, exact = Weight(dtype), Weight("float32")
    exact.weight.set_data(as_type(values(model.weight), ms.float32))
    optimizers = [optimizer_of(model, kind), optimizer_of(exact, kind)]
    for _ in range(40):
        for optimizer in optimizers:
            step(optimizer, 0.5)
        assert is_rounded(model.weight)
        np.testing.assert_array_equal(values(model.weight.main_param), values(exact.weight))
    assert np.abs(values(model.weight) - START).min() > 1e-3
    assert exact.weight.main_param is None, "a float32 parameter needs no copy"


@pytest.mark.parametrize(
    ("dtype", "flags", "gradient_type"),
    [
        ("bfloat16", {}, "float32"),
        ("bfloat16", {"grad_reduce_in_bf16": True}, "bfloat16"),
        ("float16", {}, "float16"),
        ("float16", {"accumulate_allreduce_grads_in_fp32": True}, "float32"),
        ("float32", {"grad_reduce_in_bf16": True}, "float32"),
    ],
)
def test_gradients_are_of_megatrons_type(dtype, flags, gradient_type):
    """Gradients of bfloat16 are added up in float32 unless grad_reduce_in_bf16; of float16 in float16 unless
    accumulate_allreduce_grads_in_fp32."""
    model = Weight(dtype)
    with rank_of_a_job(0, 1):
        ParamAndGradBuffers(name_parameters(model), GradientConfig(**flags))
    assert model.weight.main_grad.dtype == getattr(ms, gradient_type)


def test_values_assigned_before_the_first_step_count():
    """Values that a script assigns by MindSpore's own operators before the first step become the main_param."""
    model = Weight("float16")
    optimizer = optimizer_of(model)
    ms.ops.assign(model.weight, as_type(START + 2, ms.float16))
    step(optimizer, 0.0)
    np.testing.assert_array_equal(values(model.weight.main_param), values(as_type(START + 2, ms.float16)))


def test_values_assigned_later_count_after_reload_model_params():
    """A value assigned to a float16 parameter survives the next step once `reload_model_params` was called."""
    model = Weight("float16")
    optimizer = optimizer_of(model)
    step(optimizer, 0.0)
    ms.ops.assign(model.weight, as_type(START + 2, ms.float16))
    optimizer.reload_model_params()
    step(optimizer, 0.0)
    np.testing.assert_array_equal(values(model.weight), values(as_type(START + 2, ms.float16)))


def load_between_steps(backend, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(model's values, main_param) after `load_weights` of values that no 16-bit type holds and a step with learning
    rate 0."""
    with job(backend, config_of(TINY, 1)):
        model = Weight(dtype)
        buffers = ParamAndGradBuffers(name_parameters(model), GradientConfig())
        optimizer = get_optimizer(OptimizerConfig(weight_decay=0.0), buffers)
        step(optimizer, 1.0)
        load_weights(model, {"weight": START + np.float32(1.0001)})
        step(optimizer, 0.0, learning_rate=0.0)
        return values(model.weight), values(model.weight.main_param)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loaded_weights_are_rounded_and_not_undone_by_the_next_step(dtype):
    """Loaded weights are rounded and the main_param is the rounded value, as by Megatron's reload_model_params."""
    model, main = run(1, load_between_steps, dtype)[0]
    expected = values(as_type(START + np.float32(1.0001), getattr(ms, dtype)))
    np.testing.assert_array_equal(model, expected)
    np.testing.assert_array_equal(main, expected)
