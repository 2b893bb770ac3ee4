"""Newton-Schulz iterations and Muon's step against records of the package that Megatron calls for them."""

import json

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from parallel_core.config import OptimizerConfig
from parallel_core.config.gradient import GradientConfig
from parallel_core.numerics.newton_schulz import COEFFICIENTS, coefficients
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer import get_optimizer
from pynative.optimizer.muon import orthogonalized
from pynative.parameter import name_parameters
from tests.support.assets import asset
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.kernels import normal

RECORDED = json.loads(asset("muon.json").read_text(encoding="utf-8"))
ITERATED = [key.split() for key in RECORDED if not key.startswith("muon ")]
STEPPED = [key.split()[1:] for key in RECORDED if key.startswith("muon ")]


def sines(shape: tuple[int, ...], frequency: float) -> np.ndarray:
    return np.sin(1.0 + np.arange(np.prod(shape)) ** 2 * frequency).astype(np.float32).reshape(shape)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(("kind", "steps", "shape"), ITERATED)
def test_iterations_are_those_of_the_package(kind, steps, shape):
    """Equal up to rounding, which iterations amplify: measured at most 7e-6."""
    rows, columns = map(int, shape.split("x"))
    found = orthogonalized(Tensor(sines((rows, columns), 0.7)), coefficients(kind, int(steps)))
    np.testing.assert_allclose(found.asnumpy(), RECORDED[f"{kind} {steps} {shape}"], atol=1e-5)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
def test_iterations_in_bfloat16_are_near_those_in_float32(shape):
    """Newton-Schulz in bfloat16, which rounds to 2^-9 in every iteration, differs from float32 by less than 0.04 in the
    L2 norm."""
    x, iterations = Tensor(normal(*shape)), coefficients("quintic", 5)
    exact = orthogonalized(x, iterations).asnumpy()
    rounded = orthogonalized(x, iterations, "bfloat16")
    assert str(rounded.dtype) == "BFloat16"
    error = np.linalg.norm(rounded.float().asnumpy() - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 0.04
    assert np.all(np.abs(np.linalg.svd(exact, compute_uv=False) - 1) < 0.35)


@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_iterations_converge(kind):
    """Ten iterations with any kind of coefficients bring the singular values of a random matrix between 0.6 and 1.3."""
    found = orthogonalized(Tensor(normal(7, 12)), coefficients(kind, 10)).asnumpy()
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3


class Weight(nn.Cell):
    """A user's cell with one matrix."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(values))


def three_steps(backend, nesterov: bool, scale: str) -> np.ndarray:
    config = OptimizerConfig(
        optimizer_type="muon",
        muon_momentum=0.9,
        muon_nesterov=nesterov,
        muon_scale_mode=scale,
        muon_extra_scale_factor=0.5,
        muon_fp32_matmul_prec="high",
    )
    with job(backend, config_of(TINY, 1)):
        model = Weight(sines((5, 3), 0.83))
        optimizer = get_optimizer(config, ParamAndGradBuffers(name_parameters(model), GradientConfig()))
        for step in range(3):
            model.weight.main_grad.asnumpy()[...] = 4 * sines((5, 3), 0.96 + 0.13 * step)
            optimizer.step(0.02, 0.1, 0.25)
        return model.weight.asnumpy().copy()


@pytest.mark.parametrize(("nesterov", "scale"), STEPPED)
def test_a_step_is_that_of_the_package(nesterov, scale):
    """Three steps of Muon with weight decay, with Nesterov or not, for each scale by shape."""
    found = run(1, three_steps, nesterov == "True", scale)[0]
    np.testing.assert_allclose(found, RECORDED[f"muon {nesterov} {scale}"], atol=1e-6)


class Vectors(nn.Cell):
    """A model whose only parameter is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = Parameter(Tensor(np.ones(4, np.float32)))


def refused(backend) -> str:
    with job(backend, config_of(TINY, 1)), pytest.raises(ValueError) as caught:
        buffers = ParamAndGradBuffers(name_parameters(Vectors()), GradientConfig())
        get_optimizer(OptimizerConfig(optimizer_type="muon"), buffers)
    return str(caught.value)


def test_a_model_of_vectors_alone_is_refused():
    """--optimizer muon over a model that has vectors alone is a ValueError: it updates matrices."""
    assert run(1, refused)[0].startswith("--optimizer muon: it updates matrices, and the model has none")
