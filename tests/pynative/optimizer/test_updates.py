"""The optimizer's effect on a model, against plain numpy: rules, weight decay and learning rates by parameter."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from parallel_core.config import OptimizerConfig
from parallel_core.config.gradient import GradientConfig
from parallel_core.config.optimizer import RULES
from parallel_core.sharding import ShardSpec
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer import FlatOptimizer, get_optimizer
from pynative.optimizer.updates import UPDATES, WHOLE_UPDATES
from pynative.parameter import ParameterMeta, name_parameters
from tests.support import update_rules
from tests.support.engine import rank_of_a_job
from tests.support.kernels import normal


class Model(nn.Cell):
    """A model of a word embedding, a matrix, a norm of queries' heads ("q_norm") and a bias."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"embedding": (6, 4), "matrix": (4, 5), "q_norm": (4,), "bias": (5,)}
        roles = {"embedding": "embedding or output", "q_norm": "head norm"}
        for seed, (name, shape) in enumerate(shapes.items()):
            parameter = Parameter(Tensor(normal(*shape, seed=seed)))
            parameter.meta = ParameterMeta(ShardSpec(shape=shape, role=roles.get(name)))
            setattr(self, name, parameter)


def trained(config: OptimizerConfig, rates: list[tuple[float, float, float]]) -> tuple[dict, dict, FlatOptimizer]:
    """(values by name before, values after, optimizer) of steps with these (learning rate, weight decay, decoupled
    learning rate)."""
    model = Model()
    with rank_of_a_job(0, 1):
        buffers = ParamAndGradBuffers(name_parameters(model), GradientConfig())
        optimizer = get_optimizer(config, buffers)
    before = {p.meta.spec.name: p.asnumpy().astype(np.float64) for _, p in buffers.entries}
    for number, (learning_rate, weight_decay, decoupled_lr) in enumerate(rates):
        for _, parameter in buffers.entries:
            parameter.main_grad.asnumpy()[...] = 2 * gradient(parameter.meta.spec.name, parameter.shape, number)
        optimizer.step(learning_rate, weight_decay, 0.5, decoupled_lr)
    return before, {p.meta.spec.name: p.asnumpy() for _, p in buffers.entries}, optimizer


def gradient(name: str, shape: tuple[int, ...], number: int) -> np.ndarray:
    return normal(*shape, seed=100 * len(name) + number)


RATES = [(0.0, 0.1, 0.5), *[(1e-2, 0.1, 2e-2), (2e-2, 0.2, 1e-2), (5e-3, 0.2, 3e-2)] * 3]
MATRICES, VECTORS = {"embedding", "matrix"}, {"q_norm", "bias"}

ADAM = {"betas": (0.9, 0.95), "eps": 1e-3}
CASES = {
    "AdamW": (ADAM | {"optimizer_type": "mint.AdamW"}, update_rules.Adam, {}, MATRICES),
    "Adam": (ADAM | {"decoupled_weight_decay": False}, update_rules.Adam, {"decoupled": False}, MATRICES),
    "AdamWeightDecay": (
        ADAM | {"optimizer_type": "AdamWeightDecay"}, update_rules.Adam, {"corrected": False}, MATRICES
    ),
    "SGD": ({"optimizer_type": "SGD", "sgd_momentum": 0.8}, update_rules.Sgd, {"momentum": 0.8}, MATRICES),
    "SGD without momentum": (
        {"optimizer_type": "SGD", "sgd_momentum": 0.0}, update_rules.Sgd, {"momentum": 0.0}, MATRICES
    ),
    "Lion": ({"optimizer_type": "lion", "lion_beta1": 0.8}, update_rules.Lion, {"beta1": 0.8}, MATRICES),
    "decay of head norms": (ADAM | {"apply_wd_to_qk_layernorm": True}, update_rules.Adam, {}, MATRICES | {"q_norm"}),
    "no decay by name": (
        ADAM | {"no_weight_decay_params": ["matrix", "norm"]}, update_rules.Adam, {}, {"embedding", "bias"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("decoupled", [False, True], ids=["", "decoupled-lr"])
@pytest.mark.parametrize("case", CASES)
def test_several_steps(case, decoupled):
    """Each optimizer's update rule on every parameter; weight decay on those that the case lists; the embedding at
    --decoupled-lr where given."""
    options, rule, settings, decayed = CASES[case]
    config = OptimizerConfig(**options, decoupled_lr=2e-2 if decoupled else None)
    found, after, _ = trained(config, RATES)
    for name, value in found.items():
        update = rule(**settings)
        for number, (learning_rate, weight_decay, decoupled_lr) in enumerate(RATES):
            rate = decoupled_lr if decoupled and name == "embedding" else learning_rate
            value = update(value, gradient(name, value.shape, number), rate, weight_decay * (name in decayed))
        np.testing.assert_allclose(after[name], value, rtol=3e-6, atol=3e-6, err_msg=name)


@pytest.mark.parametrize(("case", "of_matrix", "of_others"), [("AdamW", 1 / 4, 1), ("SGD", 1, 4), ("Lion", 1 / 4, 1)])
def test_mup_divides_rates_by_the_width(case, of_matrix, of_others):
    """mu-P at four times the width: the matrix learns at 1/4 of the rate with 1/4 of Adam's epsilon; with SGD the other
    parameters, the embedding too, at 4 times."""
    options, rule, settings, decayed = CASES[case]
    found, after, _ = trained(OptimizerConfig(**options, width_multiplier=4.0), RATES)
    for name, value in found.items():
        factor = of_matrix if name == "matrix" else of_others
        update = rule(**settings, **({"epsilon": 1e-3 * factor} if case == "AdamW" else {}))
        for number, (learning_rate, weight_decay, _) in enumerate(RATES):
            gradient_now = gradient(name, value.shape, number)
            value = update(value, gradient_now, factor * learning_rate, weight_decay * (name in decayed))
        np.testing.assert_allclose(after[name], value, rtol=3e-6, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("algorithm", ["ema", "sma"])
def test_averages_of_weights_replace_them(algorithm):
    """PmAdamW with interleave 2 and num 3: every second step enters the average, which after three becomes the weights
    and begins anew at zero."""
    pma = {"pma_fused_algo": algorithm, "pma_fused_num": 3, "pma_interleave_step": 2, "pma_ema_alpha": 0.3}
    found, after, optimizer = trained(OptimizerConfig(optimizer_type="PmAdamW", **ADAM, **pma), [(1e-2, 0.1, 0.0)] * 8)
    averages = {p.meta.spec.name: states["pma_weight"].asnumpy() for p, _, states in optimizer.states_of_parameters()}
    for name, value in found.items():
        update, average = update_rules.Adam(), np.zeros_like(value)
        for number in range(8):
            value = update(value, gradient(name, value.shape, number), 1e-2, 0.1 * (name in MATRICES))
            if number % 2:
                average = 0.7 * average + 0.3 * value if algorithm == "ema" else average + value / 3
            if number == 5:
                value, average = average, np.zeros_like(average)
        np.testing.assert_allclose(after[name], value, rtol=3e-6, atol=3e-6)
        mean = average if algorithm == "ema" else 3 * average
        np.testing.assert_allclose(averages[name].reshape(mean.shape), mean, rtol=3e-6, atol=3e-6)


def test_gradients_are_clipped_by_value():
    """clip_grad_value clips every entry of the global batch's gradient after scaling."""
    found, after, _ = trained(OptimizerConfig(optimizer_type="sgd", clip_grad=0.0, clip_grad_value=0.3), [(1.0, 0, 0)])
    for name, value in found.items():
        clipped = np.clip(gradient(name, value.shape, 0), -0.3, 0.3)
        assert (np.abs(clipped) == np.float32(0.3)).any()
        np.testing.assert_allclose(after[name], value - clipped, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_states_have_the_types_that_were_asked_for(dtype):
    """States of the precision-aware optimizer have the types of exp_avg_dtype and exp_avg_sq_dtype."""
    config = OptimizerConfig(use_precision_aware_optimizer=True, exp_avg_dtype=dtype, exp_avg_sq_dtype="bf16")
    _, _, optimizer = trained(config, RATES)
    for _, _, states in optimizer.states_of_parameters():
        types = {name: str(vector.dtype) for name, vector in states.items()}
        assert types == {"exp_avg": "BFloat16" if dtype == "bf16" else "Float32", "exp_avg_sq": "BFloat16"}


def test_every_rule_has_its_arithmetic():
    """Each optimizer rule's name has a kernel: in UPDATES if it acts element by element, else in WHOLE_UPDATES."""
    assert set(UPDATES) == {name for name, rule in RULES.items() if rule.is_elementwise}
    assert set(WHOLE_UPDATES) == set(RULES) - set(UPDATES)


def test_muon_keeps_one_state_of_a_matrix():
    """Muon keeps a momentum buffer for a matrix, and Adam's two averages for embedding, norms and biases."""
    model = Model()
    with rank_of_a_job(0, 1):
        buffers = ParamAndGradBuffers(name_parameters(model), GradientConfig())
        optimizer = FlatOptimizer(OptimizerConfig(optimizer_type="muon"), buffers)
    states = {p.meta.spec.name: set(states) for p, _, states in optimizer.states_of_parameters()}
    adams = {"exp_avg", "exp_avg_sq"}
    assert states == {"embedding": adams, "matrix": {"momentum_buffer"}, "q_norm": adams, "bias": adams}
    assert optimizer.state_names == ("main_param", "momentum_buffer", "exp_avg", "exp_avg_sq")
