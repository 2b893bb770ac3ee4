"""A step's forwards and backwards on this rank, and the loss of the whole job."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from parallel_core.batch.rules import BatchRules
from parallel_core.config import AllConfig
from parallel_core.numerics.averaging import Averaging
from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.loss_scale import LossScaler
from parallel_core.planner.order import times_of_run
from parallel_core.schedules import communicate, forward_only, order
from parallel_core.step_figures import figures_of
from pynative import parallel_state
from pynative.collectives.numbers import largest_over_group, sum_over_group
from pynative.pipeline_parallel.channel import pipeline_channel
from pynative.pipeline_parallel.runner import Plan, run
from pynative.pipeline_parallel.stage import ForwardStep, Stage
from pynative.step_figures import StepFigures, collected
from pynative.step_position import StepPosition, get_step_position, set_step_position
from pynative.timers import RECORDED, Timers

LOSS_TIMER = "loss-reduce"
"""Name of the timer around the sum of the losses over all ranks."""


class GlobalLoss(NamedTuple):
    """The loss and figures of a global batch, the same on every rank: the sum of what micro-batches report and its
    divisor `weight` (tokens, micro-batches where a script reports their means, or a script's own count), `tokens`, the
    number of tokens that count (of micro-batches, where a script gives means and no tokens), and the figures that cells
    reported, by name."""

    total: float
    """The sum of what the micro-batches of all replicas report."""
    weight: float
    """The divisor of the reported loss: tokens, micro-batches where a script reports their means, or a script's own
    count."""
    tokens: float
    """The number of tokens of the global batch that count; micro-batches, where a script gives means and no tokens."""
    figures: dict[str, Array]
    """The job's figures that cells reported, named as in `parallel_core.step_figures`; of an evaluation none."""

    @property
    def mean(self) -> float:
        """The loss that is reported: total / weight, or total if the weight is below 1."""
        return self.total / max(self.weight, 1.0)


class PipelineStep:
    """Runs the configuration's schedule over this rank's chunks (`model`) and sums the losses over the job.

    loss_scaler: its scale multiplies the gradients from which backwards start; None: the scale is 1. timers: measure
    training steps.
    """

    def __init__(
        self,
        model: nn.CellList,
        config: AllConfig,
        loss_scaler: LossScaler | None = None,
        timers: Timers | None = None,
    ) -> None:
        self._timers = {True: timers or Timers(), False: Timers()}
        self.chunks = len(model)
        self.averaging = Averaging(
            per_token=config.training_config.calculate_per_token_loss,
            micro_batches=config.dataset_config.micro_batch_num,
            replicas=parallel_state.get_data_parallel_world_size(),
            loss_scaler=loss_scaler,
            average_in_collective=config.training_config.gradient.average_in_collective,
        )
        is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        delays = config.moe_config.delay_wgrad_compute
        self.stage = Stage(model, self.averaging, is_last, self._enter, delays, config.takes_turns)
        self.channel = pipeline_channel(config)
        self._figures = figures_of(config.model_config)
        self._config, self.micro_batches = config, config.dataset_config.micro_batch_num
        self._rules = BatchRules.of(config)
        self.own_losses: tuple[float, ...] = ()
        """The reported sum of losses (`MicroBatchLoss.read`) of each of this rank's micro-batches of the last step;
        empty on a stage without the loss."""
        self.ordered_by = times_of_run(config)
        """The times by which the schedule is made, of all stages; None: equal ones, or it takes no times."""
        self._plans = {(train, self.micro_batches): self._plan(train, self.micro_batches) for train in (True, False)}
        # Tensor- and context-parallel ranks have the same loss; one rank of each replica reports it.
        self._reports = is_last and parallel_state.get_tensor_and_context_parallel_rank() == 0

    def _plan(self, train: bool, micro_batches: int) -> Plan:
        parallel, group = self._config.parallel_config, self.channel.group
        rounds = parallel.microbatch_group_size_per_virtual_pipeline_stage
        computes = (
            order(parallel.schedule_name, parallel.placement, micro_batches, rounds, self.ordered_by)
            if train
            else forward_only(group.size, micro_batches, self.chunks, rounds)
        )
        return Plan.of(communicate(computes, parallel.placement)[group.rank], group.rank, parallel.placement)

    @staticmethod
    def _enter(micro_batch: int, chunk: int) -> None:
        replicas = parallel_state.get_data_parallel_world_size()
        of_all_replicas = micro_batch * replicas + parallel_state.get_data_parallel_rank()
        set_step_position(StepPosition(get_step_position().iteration, of_all_replicas, chunk))

    def run(
        self,
        forward_step: ForwardStep,
        data_iterator: Iterator[Any] | None,
        train: bool,
        micro_batches: int | None = None,
        again: bool = False,
    ) -> GlobalLoss:
        """Run a step on this rank's stage: gradients are added to their buffers when training; returns the global
        batch's loss and figures.

        micro_batches: their number on this rank; None: the configuration's. again: run the last step once more, with
        the data that were drawn for it.
        """
        number = micro_batches or self.micro_batches
        if (train, number) not in self._plans:
            self._plans[train, number] = self._plan(train, number)
        plan = self._plans[train, number]
        self.averaging = self.stage.averaging = replace(self.averaging, micro_batches=number)
        timers = self._timers[train]  # as in Megatron, the times of a step leave evaluation out
        with timers("batch-generator"):
            if again:
                forward_step.again()
            else:
                forward_step.begin(data_iterator, self.stage.model, number, self._rules)
        self.stage.begin(forward_step, train, plan.split, plan.completing)
        figures = StepFigures(self._figures if train else (), self.averaging)
        with collected(figures if train else None):
            run(plan, self.stage.compute, self.channel, timers)
        with timers(LOSS_TIMER, RECORDED):
            return self._global_loss(figures)

    def _global_loss(self, figures: StepFigures) -> GlobalLoss:
        """The losses summed over the job, and the job's figures. Only here are losses read from the device."""
        read = [loss.read() for loss in self.stage.losses]
        self.own_losses = tuple(loss for loss, _, _ in read)
        own = np.sum(read, axis=0) if self._reports and read else np.zeros(3)
        world = parallel_state.get_world_group()
        total, weight, tokens, *vector = sum_over_group([*own.tolist(), *figures.vector()], world)
        largest = {name: largest_over_group(values, world) for name, values in figures.largest().items()}
        return GlobalLoss(total, weight, tokens, figures.whole(vector, largest))
