"""One training step: schedule, gradients, norm, update; and evaluation, which only runs forwards."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mindspore import nn

from parallel_core.config import AllConfig, ModelConfig, ParallelConfig, TrainingConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.loss_scale import LossScaler
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from pynative import parallel_state
from pynative.distributed.bucket import NonFiniteGradients
from pynative.moe.expert_bias import ExpertBiases
from pynative.moe.hot_experts import HotExpertLayers
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.optimizer.statistics import GradientNorm, clip_coefficient
from pynative.pipeline_parallel.stage import ForwardStep
from pynative.pipeline_parallel.step import PipelineStep
from pynative.step_part import StepPart, around
from pynative.step_position import StepPosition, set_step_position
from pynative.timers import RECORDED, Timers
from pynative.training.float8 import DelayedScales
from pynative.training.forward_step import BatchedForwardStep
from pynative.training.rerun import Attempt, Rerun
from pynative.training.utils import set_training
from pynative.transformer.qk_clip import QueryKeyClip


@dataclass(frozen=True)
class StepResult:
    """The result of a training step; the same on every rank. loss, gradient_norm: of the global batch, the norm before
    clipping; learning_rate, weight_decay: of this update, also of a skipped one; is_finite: whether the norm is finite,
    without a loss scaler the loss as well; skipped: whether no update was made; figures: by name, those of
    `parallel_core.step_figures`, which the model's cells reported."""

    loss: float
    """The global batch's loss before the update: the mean over the tokens that count, or over the micro-batches if a
    script's loss function reports their means, or over the script's own count."""
    tokens: float
    """The number of tokens of the global batch that count; micro-batches, where a script gives means and no tokens."""
    gradient_norm: float
    """The L2 norm of the global batch's gradient, before clipping."""
    learning_rate: float
    """The learning rate of this update, also of a skipped one."""
    weight_decay: float
    """The weight decay of this update."""
    is_finite: bool
    """Whether the gradient norm is finite; without a loss scaler, the loss as well."""
    skipped: bool = False
    """Whether no update was made: neither weights nor the optimizer's state nor the schedules have changed."""
    loss_scale: float = 1.0
    """The loss scale that the gradients were computed with."""
    gradient_scale: float = 1.0
    """The factor that turns the buffers' gradients into the global batch's, before clipping."""
    samples: int = 0
    """The number of samples of the global batch."""
    decoupled_lr: float = 0.0
    """The learning rate of this update for embedding and output layer."""
    figures: Mapping[str, Array] = field(default_factory=dict)
    """The job's figures that cells reported, named as in `parallel_core.step_figures`."""
    spike: str = ""
    """The reason why loss or norm is a spike; "": neither is."""
    explanation: str = ""
    """The place where a result that is not finite came up, if computing the step again gave the same (`--rerun-mode`);
    else ""."""


def config_of(training_config: TrainingConfig, model_config: ModelConfig) -> AllConfig:
    """The configuration that both sections belong to. Raises ValueError if they do not belong to one."""
    parallel_config: ParallelConfig | None = model_config.parallel_config
    config: AllConfig | None = parallel_config.all_config if parallel_config is not None else None
    if config is None or config.training_config is not training_config:
        raise ValueError("training_config, model_config: must be sections of one configuration, as init_configs_* make")
    return config


class TrainOneStepCell:
    """A training step: forward and backward of the global batch, then the update.

    Args:
        network_with_loss: this stage's chunks, as `get_model` returns them.
        forward_step: how a chunk runs on a step's data; None: the data are the model's keyword arguments.
        loss_scaler: takes the place of the optimizer's; None: that is used.

    Raises ValueError if training_config and model_config are not sections of one configuration.
    """

    def __init__(
        self,
        network_with_loss: nn.CellList,
        optimizer: FlatOptimizer,
        opt_param_scheduler: OptimizerParamScheduler,
        training_config: TrainingConfig,
        model_config: ModelConfig,
        forward_step: ForwardStep | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        self.config = config_of(training_config, model_config)
        self.model, self.optimizer, self.scheduler = network_with_loss, optimizer, opt_param_scheduler
        self.buffers = optimizer.buffers
        self.forward_step = forward_step or BatchedForwardStep()
        self.loss_scaler = optimizer.grad_scaler = loss_scaler or optimizer.grad_scaler
        log = training_config.log
        barrier = parallel_state.get_world_group().barrier if log.barrier_with_L1_time else None
        idle = parallel_state.get_backend().seconds_waited if training_config.faults.log_straggler else None
        self.timers = Timers(log.timing_log_level, barrier, idle)
        self.expert_biases = ExpertBiases(self.model)
        self.hot_experts = HotExpertLayers(self.model, model_config.moe_config)
        self.float8_scales = DelayedScales(self.model, model_config.float8)
        self.parts: tuple[StepPart, ...] = (self.expert_biases, self.hot_experts, self.float8_scales)
        self.qk_clip = QueryKeyClip(self.model, model_config.qk_clip)
        self.pipeline = PipelineStep(self.model, self.config, self.loss_scaler, self.timers)
        checks_finite = training_config.check_for_nan_in_grad and self.loss_scaler is None
        for bucket in self.buffers.buckets:  # a loss scaler finds its scale by gradients that overflow
            bucket.is_checked = checks_finite or (bucket.is_checked and self.loss_scaler is None)
        self.rerun = Rerun(training_config.faults, checks_finite)
        self.gradient_norm = GradientNorm(self.buffers, checks_all=self.loss_scaler is not None)
        self.skipped_steps = 0

    def __call__(self, **data: Any) -> tuple[float, bool, float, float, float]:
        """Make one step on the model's keyword arguments for all of this rank's micro-batches.

        Returns (loss, is_finite, loss_scale, learning_rate, gradient norm).
        """
        set_step_position(StepPosition(self.optimizer.steps + self.skipped_steps))
        result = self.step(iter([data]))
        self.buffers.finish_param_sync()
        return result.loss, result.is_finite, result.loss_scale, result.learning_rate, result.gradient_norm

    def step(
        self,
        data_iterator: Iterator[Any] | None,
        before_update: Callable[[float], None] | None = None,
        micro_batches: int | None = None,
    ) -> StepResult:
        """Make one step. `before_update(gradient_scale)` is called with the reduced gradients in the buffers, still to
        be multiplied by gradient_scale, also if the update is skipped afterwards.

        data_iterator: the training data, or None on a rank that draws none. micro_batches: their number on this rank;
        None: the configuration's. All ranks call this. Raises ValueError for a batch that does not fit the model, and
        with --rerun-mode disabled NonFiniteGradients for checked gradients of this rank that are not finite.
        """
        data, replicas = self.config.dataset_config, self.config.parallel_config.data_parallel_size
        samples = data.batch_size * replicas * (micro_batches or data.micro_batch_num)
        first = self._attempt(data_iterator, micro_batches)
        judged = self.rerun.judge(first, partial(self._attempt, None, micro_batches, again=True), self)
        loss, scale, norm = judged.attempt.loss, judged.attempt.gradient_scale, judged.attempt.norm
        loss_scale = self.pipeline.averaging.loss_scale
        for part in self.parts:
            part.after_step()
        with self.timers("before-update", RECORDED):
            if before_update:
                before_update(scale)
        rates = self.scheduler.rates()
        is_finite = math.isfinite(norm) and (self.loss_scaler is not None or math.isfinite(loss.mean))
        if self.loss_scaler is not None:
            self.loss_scaler.update(overflow=not is_finite)
        is_updated = is_finite and not self.rerun.skips(judged)
        if is_updated:
            clipped = scale * clip_coefficient(norm, self.config.optimizer_config.clip_grad)
            with self.timers("optimizer", 1):
                factors = self.qk_clip.row_factors(loss.figures)
                self.optimizer.step(rates.learning_rate, rates.weight_decay, clipped, rates.decoupled_lr, factors)
            self.scheduler.step(samples)
            for part in self.parts:
                part.after_update(loss.figures)
        self.skipped_steps += not is_updated
        return StepResult(
            loss.mean, loss.tokens, norm, *rates[:2], is_finite, not is_updated, loss_scale, scale, samples,
            rates.decoupled_lr, loss.figures, judged.spike, judged.explanation,
        )  # fmt: skip

    def _attempt(
        self, data_iterator: Iterator[Any] | None, micro_batches: int | None, *, again: bool = False
    ) -> Attempt:
        """Run the forwards and backwards of a step, up to the gradient norm; again: on the data that were drawn
        already."""
        with self.timers("zero-grad-buffer", RECORDED):
            set_training(self.model, True)
            self.buffers.empty_gradients(self.pipeline.averaging.factor_before_sum)
        with self.timers("forward-backward", 1), around(self.parts, train=True):
            loss = self.pipeline.run(self.forward_step, data_iterator, True, micro_batches, again)
        with self.timers("all-grads-sync", 1):
            fault = self._reduce_gradients()
        scale = self.pipeline.averaging.gradient_scale(loss.tokens)
        with self.timers("optimizer-clip-main-grad", 1):
            return Attempt(loss, scale, self.gradient_norm(scale), self.pipeline.own_losses, fault)

    def _reduce_gradients(self) -> str:
        """Reduce the gradients. Returns a sentence about those of this rank that are not finite if the step can be
        computed again, else raises it; "": all are finite."""
        try:
            self.buffers.reduce_gradients()
        except NonFiniteGradients as error:
            if not self.rerun.is_on:
                raise
            self.buffers.reduce_over_others()
            return error.fault
        return ""

    def evaluate(self, data_iterator: Iterator[Any] | None, batches: int) -> float:
        """The mean loss over all tokens that count (or what a script's loss function counts) of `batches` global
        batches of evaluation's size, without dropout and gradients, the same on all ranks; all of them call this. 0.0
        for no batches."""
        set_training(self.model, False)
        with around(self.parts, train=False):
            number = self.config.evaluated_micro_batches
            losses = [
                self.pipeline.run(self.forward_step, data_iterator, train=False, micro_batches=number)
                for _ in range(batches)
            ]
        return sum(loss.total for loss in losses) / max(sum(loss.weight for loss in losses), 1.0)
