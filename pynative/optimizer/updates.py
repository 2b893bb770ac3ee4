"""The arithmetic of each elementwise `UpdateRule`, which updates one `Sweep` (a run of a flat buffer, with its states)
at once, and tables of the rules."""

from collections.abc import Callable
from typing import Any

from parallel_core.config import OptimizerConfig
from parallel_core.config.update_rules.adam import EXP_AVG, EXP_AVG_SQ, PMA_WEIGHT
from pynative import kernels
from pynative.kernels.contract.flat_buffers import AdamStep, Formula
from pynative.optimizer.muon import matrices_of
from pynative.optimizer.sweep import Step, Sweep


def adam(sweep: Sweep, config: OptimizerConfig, step: Step) -> None:
    """Update the weights and states of a `Sweep`, in place, by AdamW (Loshchilov and Hutter, 2019) or Adam (Kingma and
    Ba, 2015), with or without bias correction, as the configuration says; epsilon, times the parameters' `rate_factor`,
    is added to the root of the second moment. With PMA the weights are then, every `pma_interleave_step` updates, taken
    into their average, which after `pma_fused_num` times becomes the weights."""
    beta1, beta2 = config.adam.betas
    settings = AdamStep(
        learning_rate=step.learning_rate_of(sweep.treatment),
        beta1=beta1,
        beta2=beta2,
        epsilon=config.adam.eps * sweep.treatment.rate_factor,
        weight_decay=step.weight_decay_of(sweep.treatment),
        step=step.number,
        grad_scale=step.grad_scale,
        is_decoupled=config.adam.decoupled_weight_decay,
        is_corrected=config.adam.adam_bias_correction,
    )
    moments = sweep.moments
    kernels.adam_(sweep.param, sweep.grad, moments[EXP_AVG], moments[EXP_AVG_SQ], settings, sweep.model_param)
    if PMA_WEIGHT in moments:
        _average_weights(sweep, config, step.number)


def _average_weights(sweep: Sweep, config: OptimizerConfig, number: int) -> None:
    """Take the weights into their average (PMA) every `pma_interleave_step` updates; after `pma_fused_num` of these the
    average becomes the weights, and a new one begins."""
    average, pma = sweep.moments[PMA_WEIGHT], config.adam
    if number % pma.pma_interleave_step:
        return
    is_mean = pma.pma_fused_algo == "sma"
    kernels.combine_(average, sweep.param, *((1.0, 1.0) if is_mean else (1.0 - pma.pma_ema_alpha, pma.pma_ema_alpha)))
    if number % (pma.pma_interleave_step * pma.pma_fused_num) == 0:
        factor = 1.0 / pma.pma_fused_num if is_mean else 1.0
        kernels.combine_(sweep.param, average, 0.0, factor, sweep.model_param)
        kernels.fill_(average, 0.0)


def sgd(sweep: Sweep, config: OptimizerConfig, step: Step) -> None:
    """Update the weights and states of a `Sweep`, in place, by gradient descent, with momentum if there is a state of
    it; weight decay times the weights is added to the gradient."""
    momentum, learning_rate = config.sgd.sgd_momentum, step.learning_rate_of(sweep.treatment)
    decay = step.weight_decay_of(sweep.treatment)

    def formula(_: Any, param: Any, grad: Any, *buffers: Any) -> tuple[Any, ...]:
        grad = grad + param * decay if decay else grad
        buffers = tuple(buffer * momentum + grad for buffer in buffers)
        return param - (buffers[0] if buffers else grad) * learning_rate, *buffers

    _swept(formula, sweep, step)


def lion(sweep: Sweep, config: OptimizerConfig, step: Step) -> None:
    """Update the weights and states of a `Sweep`, in place, by Lion (Chen et al., 2023, algorithm 2), with decoupled
    weight decay."""
    beta1, beta2 = config.lion.lion_beta1, config.lion.lion_beta2
    learning_rate = step.learning_rate_of(sweep.treatment)
    decay = 1 - learning_rate * step.weight_decay_of(sweep.treatment)

    def formula(functions: Any, param: Any, grad: Any, average: Any) -> tuple[Any, ...]:
        direction = functions.sign(average * beta1 + grad * (1 - beta1))
        return param * decay - direction * learning_rate, average * beta2 + grad * (1 - beta2)

    _swept(formula, sweep, step)


def _swept(formula: Formula, sweep: Sweep, step: Step) -> None:
    moments = list(sweep.moments.values())
    kernels.update_(formula, sweep.param, sweep.grad, moments, step.grad_scale, sweep.model_param)


UPDATES: dict[str, Callable[[Sweep, OptimizerConfig, Step], None]] = {"adam": adam, "sgd": sgd, "lion": lion}
"""The update function of each elementwise rule, by the rule's name."""

WHOLE_UPDATES = {"muon": matrices_of}
"""Name of a rule that updates whole matrices -> the function that makes their updates."""
