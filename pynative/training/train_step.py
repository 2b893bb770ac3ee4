"""One training step: schedule, gradients, norm, update. And its forward-only sibling for evaluation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from parallel_core.averaging import Averaging
from parallel_core.config import AllConfig
from parallel_core.lr_schedule import OptimizerParamScheduler
from parallel_core.schedules import communicate, forward_only, one_f_one_b
from parallel_core.schedules.actions import Compute
from pynative import parallel_state
from pynative.distributed.finalize_model_grads import finalize_model_grads
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer
from pynative.optimizer.grad_norm import GradientNorm, clip_coefficient
from pynative.optimizer.optimizer import FlatOptimizer
from pynative.pipeline_parallel.runner import Channel, run
from pynative.pipeline_parallel.stage import Stage
from pynative.tensor_parallel.random import get_rng_tracer
from pynative.training.forward_step import BatchedForwardStep, MegatronForwardStep

Schedule = Callable[[int, int], list[list[Compute]]]


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
    """What the buffer's gradients are to be multiplied with to be the global batch's, before clipping."""


class PipelineStep:
    """Runs a schedule over this rank's stage and sums the losses over the job."""

    def __init__(self, model: nn.Cell, parameters: list, config: AllConfig) -> None:
        self.micro_batches = config.dataset_config.micro_batch_num
        self.averaging = Averaging(
            per_token=config.training_config.calculate_per_token_loss,
            micro_batches=self.micro_batches,
            replicas=parallel_state.get_data_parallel_world_size(with_context_parallel=True),
        )
        is_last = parallel_state.is_pipeline_last_stage()
        self.stage = Stage(model, parameters, self.averaging, is_last, self._enter)
        shape = (config.model_config.seq_length, config.dataset_config.batch_size, config.model_config.hidden_size)
        dtype = getattr(ms, config.model_config.compute_dtype)
        self.channel = Channel(parallel_state.get_pipeline_model_parallel_group(), shape, dtype)
        # Every tensor-parallel rank has the same loss; one of each replica's reports it.
        self._reports = is_last and parallel_state.get_tensor_model_parallel_rank() == 0

    @staticmethod
    def _enter(micro_batch: int) -> None:
        replicas = parallel_state.get_data_parallel_world_size()
        get_rng_tracer().micro_batch = micro_batch * replicas + parallel_state.get_data_parallel_rank()

    def run(
        self,
        schedule: Schedule,
        forward_step: BatchedForwardStep | MegatronForwardStep,
        data_iterator: Iterator,
        train: bool,
    ) -> tuple[float, float]:
        """(mean loss over the global batch, its number of counting tokens)."""
        stages, stage = self.channel.group.size, self.channel.group.rank
        forward_step.begin(data_iterator)
        self.stage.begin(forward_step, train)
        actions = communicate(schedule(stages, self.micro_batches))[stage]
        run(actions, self.stage.forward, self.stage.backward, self.channel)
        return self._global_loss()

    def _global_loss(self) -> tuple[float, float]:
        own = (self.stage.reported_sum, self.stage.reported_count, self.stage.tokens) if self._reports else (0, 0, 0)
        total = parallel_state.get_world_group().all_reduce(Tensor(np.array(own, np.float32))).asnumpy()
        return float(total[0]) / max(float(total[1]), 1.0), float(total[2])


class TrainOneStepCell:
    """Forward and backward of the global batch, then the update."""

    def __init__(
        self,
        model: nn.Cell,
        buffer: ParamAndGradBuffer,
        optimizer: FlatOptimizer,
        scheduler: OptimizerParamScheduler,
        forward_step: BatchedForwardStep | MegatronForwardStep,
        config: AllConfig,
    ) -> None:
        self.model, self.buffer, self.optimizer, self.scheduler = model, buffer, optimizer, scheduler
        self.forward_step, self.config = forward_step, config
        self.pipeline = PipelineStep(model, [piece.parameter for piece in buffer.pieces], config)
        self.gradient_norm = GradientNorm(
            buffer, parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_model_parallel_group()
        )

    def __call__(self, data_iterator: Iterator, before_update: Callable[[float], None] | None = None) -> StepResult:
        """One step; `before_update(gradient_scale)` is called with the reduced gradients in the buffer, unscaled."""
        self.model.set_train(True)
        self.buffer.empty_gradients()
        loss, tokens = self.pipeline.run(one_f_one_b, self.forward_step, data_iterator, train=True)
        finalize_model_grads(self.model, self.buffer)
        scale = self.pipeline.averaging.gradient_scale(tokens)
        norm = self.gradient_norm() * scale
        if before_update:
            before_update(scale)
        learning_rate, weight_decay = self.scheduler.get_lr(), self.scheduler.get_wd()
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            clipped = scale * clip_coefficient(norm, self.config.optimizer_config.clip_grad)
            self.optimizer.step(learning_rate, weight_decay, clipped)
            self.scheduler.step(self.config.dataset_config.global_batch_size)
        return StepResult(loss, tokens, norm, learning_rate, weight_decay, is_finite, gradient_scale=scale)

    def evaluate(self, data_iterator: Iterator, batches: int) -> float:
        """Mean loss over `batches` global batches, without dropout and without gradients."""
        self.model.set_train(False)
        results = [
            self.pipeline.run(forward_only, self.forward_step, data_iterator, train=False) for _ in range(batches)
        ]
        return sum(loss * tokens for loss, tokens in results) / max(sum(tokens for _, tokens in results), 1.0)
