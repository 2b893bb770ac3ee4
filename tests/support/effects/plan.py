"""Everything that a configuration says of a run before it starts: who computes what, when, at which cost."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mapping.memory import memory_of_stages
from parallel_core.blocks import recompute_lines, stage_chunks
from parallel_core.config import AllConfig, ConfigError
from parallel_core.costs import StagePlan, training_flops
from parallel_core.costs.traffic import step_traffic
from parallel_core.numerics.lr_schedule import Rates
from parallel_core.optimizer import Treatment, treatment
from parallel_core.schedules import GENERATORS, communicate

OVERFLOWS = [True] * 40 + [
    *(np.random.default_rng(1).random(100) < 0.3),
    *(np.random.default_rng(2).random(3000) < 0.002),
]
"""Overflows of updates: always at first, to the smallest scale, then often, then rarely enough for a scale to grow."""


def _stages(config: AllConfig) -> range:
    return range(config.parallel_config.pipeline_model_parallel_size)


def _treatments(config: AllConfig) -> list[Treatment]:
    specs = (spec for stage in _stages(config) for spec in StagePlan(config, stage).parameters)
    return [treatment(spec, config.optimizer_config) for spec in specs]


PARTS: dict[str, Callable[[AllConfig], Any]] = {
    "batch": lambda config: (config.batch_sizes, config.evaluated_micro_batches),
    "rates": lambda config: [*_rates(config)],
    "loss scales": lambda config: [*_loss_scales(config)],
    "chunks": lambda config: [stage_chunks(config.model_config, stage) for stage in _stages(config)],
    "schedule": lambda config: [*_schedule(config)],
    "recompute": lambda config: [*recompute_lines(config.model_config)],
    "FLOPs": lambda config: training_flops(config.model_config, 1),
    "updates": _treatments,
    "buffers": lambda config: [StagePlan(config, stage).buffers for stage in _stages(config)],
    "memory": memory_of_stages,
    "writers": lambda config: config.training_config.log.writers("output"),
    "traffic": lambda config: [step_traffic(StagePlan(config, stage)) for stage in _stages(config)],
}
"""By name, cheap ones first."""


def _schedule(config: AllConfig) -> list:
    parallel = config.parallel_config
    sizes = parallel.pipeline_model_parallel_size, config.dataset_config.micro_batch_num, parallel.chunks
    group_size = parallel.microbatch_group_size_per_virtual_pipeline_stage
    return communicate(GENERATORS[parallel.schedule_name](*sizes, group_size), parallel.placement)


def _rates(config: AllConfig) -> Iterator[Rates]:
    """Learning rates of 20 updates: more than the run has, so that a schedule is seen to its end."""
    from pynative.optimizer import get_optimizer_param_scheduler

    try:
        scheduler = get_optimizer_param_scheduler(config)
    except ConfigError:  # the data decide the length of the training
        return
    for _ in range(20):
        yield scheduler.rates()
        scheduler.step(config.dataset_config.global_batch_size // 2)


def _loss_scales(config: AllConfig) -> Iterator[float]:
    scaler = config.training_config.precision.make_loss_scaler()
    for overflow in OVERFLOWS if scaler else ():
        scaler.update(bool(overflow))
        yield scaler.scale
