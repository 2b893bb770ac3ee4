"""One training step: schedule, gradients, norm, update. And its forward-only sibling for evaluation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mindspore import nn

from parallel_core.config import AllConfig
from parallel_core.lr_schedule import OptimizerParamScheduler
from pynative.distributed.finalize_model_grads import finalize_model_grads
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.grad_norm import GradientNorm, clip_coefficient
from pynative.optimizer.optimizer import FlatOptimizer
from pynative.pipeline_parallel.stage import ForwardStep
from pynative.pipeline_parallel.step import PipelineStep


@dataclass(frozen=True)
class StepResult:
    """What a training step did; the same on every rank."""

    loss: float
    """Mean over the tokens that count of the global batch, before the update."""
    tokens: float
    """How many those are."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    """Used by this update."""
    weight_decay: float
    """Used by this update."""
    is_finite: bool
    loss_scale: float = 1.0
    gradient_scale: float = 1.0
    """What the buffers' gradients are to be multiplied with to be the global batch's, before clipping."""


class TrainOneStepCell:
    """Forward and backward of the global batch, then the update."""

    def __init__(
        self,
        model: nn.CellList,
        buffers: ParamAndGradBuffers,
        optimizer: FlatOptimizer,
        scheduler: OptimizerParamScheduler,
        forward_step: ForwardStep,
        config: AllConfig,
    ) -> None:
        self.model, self.buffers, self.optimizer, self.scheduler = model, buffers, optimizer, scheduler
        self.forward_step, self.config = forward_step, config
        self.pipeline = PipelineStep(model, config)
        self.gradient_norm = GradientNorm(buffers)

    def __call__(self, data_iterator: Iterator, before_update: Callable[[float], None] | None = None) -> StepResult:
        """One step; `before_update(gradient_scale)` is called with the reduced gradients in the buffers, unscaled."""
        self.model.set_train(True)
        self.buffers.empty_gradients()
        loss = self.pipeline.run(self.forward_step, data_iterator, train=True)
        finalize_model_grads(self.buffers)
        scale = self.pipeline.averaging.gradient_scale(loss.tokens)
        norm = self.gradient_norm() * scale
        if before_update:
            before_update(scale)
        learning_rate, weight_decay = self.scheduler.get_lr(), self.scheduler.get_wd()
        is_finite = math.isfinite(loss.mean) and math.isfinite(norm)
        if is_finite:
            clipped = scale * clip_coefficient(norm, self.config.optimizer_config.clip_grad)
            self.optimizer.step(learning_rate, weight_decay, clipped)
            self.scheduler.step(self.config.dataset_config.global_batch_size)
        return StepResult(loss.mean, loss.tokens, norm, learning_rate, weight_decay, is_finite, gradient_scale=scale)

    def evaluate(self, data_iterator: Iterator, batches: int) -> float:
        """Mean loss over `batches` global batches, without dropout and without gradients."""
        self.model.set_train(False)
        losses = [self.pipeline.run(self.forward_step, data_iterator, train=False) for _ in range(batches)]
        return sum(loss.total for loss in losses) / max(sum(loss.weight for loss in losses), 1.0)
