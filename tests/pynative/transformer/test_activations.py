"""The table of activations against the operators that compute them."""

import mindspore as ms
import numpy as np
import pytest

from parallel_core.blocks import MLP
from parallel_core.numerics.activations import ACTIVATIONS, adjusted
from pynative import kernels
from tests.support.engine import TINY, config_of


@pytest.fixture(params=["host", "ops"])
def implementation(request):
    kernels.use(request.param)
    yield
    kernels.use()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_that_is_offered_is_computed(implementation, name):
    """Each activation's operator, fused and not, exists and halves the features if the table says gated."""
    activation = ACTIVATIONS[name]
    x = ms.Tensor(np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32))
    for operator in filter(None, (activation.operator, activation.without_fusion)):
        assert kernels.bias_activation(x, None, operator).shape == (3, 2, 4 if activation.gated else 8)


@pytest.mark.parametrize(
    ("flags", "operator"),
    [
        ("", "gelu_tanh"),
        ("--no-bias-gelu-fusion", "gelu_erf"),
        ("--disable-bias-linear", "gelu_erf"),
        ("--swiglu", "swiglu"),
        ("--geglu", "geglu_erf"),
        ("--gelu-tanh", "geglu_tanh"),
        ("--squared-relu", "squared_relu"),
        ("--quick-geglu --activation-func-clamp-value 7 --glu-linear-offset 1", adjusted("geglu_quick", 7.0, 1.0)),
    ],
)
def test_gelu_has_two_forms_as_in_megatron(flags, operator):
    """GELU's tanh form where it is fused with a bias, its erf form otherwise; other activations have one form."""
    block = MLP.of(config_of(f"{TINY} {flags}", 1).model_config)
    assert block.activation.operator == operator


def test_a_gated_activation_doubles_the_first_linear():
    """linear_fc1 is [gate; up], each cut on its own; linear_fc2 has f inputs all the same."""
    block = MLP.of(config_of(f"{TINY} --swiglu --ffn-hidden-size 48", 1).model_config)
    assert (block.linear_fc1.output_size, block.linear_fc1.parts, block.linear_fc2.input_size) == (96, 2, 48)
