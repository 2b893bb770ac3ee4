"""The parameters that a pipeline stage has, and the flat buffers that they lie in, without building a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.blocks import ParameterSpec, stage_chunks
from parallel_core.buffers import BufferPlan, plan_buffers
from parallel_core.sharding import ShardSpec, place

if TYPE_CHECKING:
    from parallel_core.config import AllConfig


def _named(config: AllConfig, stage: int) -> list[tuple[ShardSpec, ParameterSpec]]:
    """Each parameter's spec under its global name, and what else its block says of it."""
    chunks = stage_chunks(config.model_config, stage)
    return [(p.shard.named(name), p) for chunk in chunks for name, p in chunk.parameters().items()]


def stage_parameters(config: AllConfig, stage: int) -> list[ShardSpec]:
    """Those of a stage, chunk after chunk; a last stage's copy of a tied embedding included."""
    return [spec for spec, _ in _named(config, stage)]


def stage_buffers(config: AllConfig, stage: int) -> list[BufferPlan]:
    """The flat buffers that a rank's parameters and gradients lie in."""
    coordinates = {"tp": (0, config.parallel_config.tensor_model_parallel_size)}
    parameters = [(place(spec, coordinates), parameter.dtype) for spec, parameter in _named(config, stage)]
    return plan_buffers(parameters, config.training_config.gradient.type_for)


def buffer_elements(config: AllConfig, stage: int) -> int:
    """Elements of the flat buffers that a rank's parameters (or gradients) lie in."""
    return sum(plan.size for plan in stage_buffers(config, stage))
