"""The parameters that a pipeline stage has, and the flat buffers that they lie in, without building a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.blocks import ParameterSpec, stage_chunks
from parallel_core.buffers import BufferPlan, Cell, Residence, plan_buffers, plan_residence
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.sharding import INSTANCES_OF_STATES, SHARDS_OF_STATES, Coordinates, ShardSpec, place

if TYPE_CHECKING:
    from parallel_core.config import AllConfig


def _named(config: AllConfig, stage: int) -> list[tuple[ShardSpec, ParameterSpec, int]]:
    """Each parameter's spec under its global name, what else its block says of it, and its chunk."""
    chunks = enumerate(stage_chunks(config.model_config, stage))
    return [(p.shard.named(name), p, number) for number, chunk in chunks for name, p in chunk.parameters().items()]


def _trained(config: AllConfig, stage: int) -> list[tuple[ShardSpec, ParameterSpec, int]]:
    return [entry for entry in _named(config, stage) if config.lora_config.trains(entry[0])]


def frozen_bytes(config: AllConfig, stage: int) -> int:
    """Bytes of the parameters that are not trained, and so lie in no buffer."""
    coordinates, trains = stage_coordinates(config, stage), config.lora_config.trains
    frozen = [(spec, parameter.dtype) for spec, parameter, _ in _named(config, stage) if not trains(spec)]
    return sum(place(spec, coordinates).size * DTYPES[dtype].bytes for spec, dtype in frozen)


def stage_parameters(config: AllConfig, stage: int) -> list[ShardSpec]:
    """Those of a stage, chunk after chunk; a last stage's copy of a tied embedding included."""
    return [spec for spec, _, _ in _named(config, stage)]


def stage_coordinates(config: AllConfig, stage: int, replica: int = 0) -> Coordinates:
    """A rank of a stage in the groups that its buffers are laid out for; `replica` is its place among those with the
    same dense parameters, of which it is the first tensor-parallel rank."""
    parallel = config.parallel_config
    tensor, stages = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    replicas = parallel.data_parallel_size * parallel.context_parallel_size
    expert_tensor, experts = parallel.expert_tensor_parallel_size, parallel.expert_model_parallel_size
    place, copies = replica * tensor, max(1, replicas * tensor // (expert_tensor * experts))
    return {
        "tp": (0, tensor),
        "pp": (stage, stages),
        "dp": (0, parallel.data_parallel_size),
        "expert-tp": (place % expert_tensor, expert_tensor),
        "ep": (place // expert_tensor % experts, experts),
        **_of_replicas(config, "dp-cp", replica, replicas),
        **_of_replicas(config, "expert-dp", place // (expert_tensor * experts), copies),
        "embedding": (min(stage, 1), min(stages, 2)),
    }


def _of_replicas(config: AllConfig, kind: str, place: int, count: int) -> Coordinates:
    """Among those with the same parameters, and in the instances of the distributed optimizer's state."""
    instances = config.training_config.gradient.num_distributed_optimizer_instances
    of_instance = max(1, count // instances)
    return {
        kind: (place, count),
        SHARDS_OF_STATES[kind]: (place % of_instance, of_instance),
        INSTANCES_OF_STATES[kind]: (place // of_instance, instances),
    }


def _cells_of_parameters(config: AllConfig, stage: int) -> tuple[list[Cell | None], int]:
    """The cell of each parameter that is trained, and how many cells a rank has. A copy of the embedding is the
    head's."""
    keys: list[Cell | None] = []
    chunks, before = stage_chunks(config.model_config, stage), 0
    for chunk in chunks:
        cells = [before + i for i, cell in enumerate(chunk.cells()) for _ in cell.parameters()]
        before += len(chunk.cells())
        keys += [*cells, *[before - 1] * (len(chunk.parameters()) - len(cells))]
    named = _named(config, stage)
    return [key for key, (spec, *_) in zip(keys, named, strict=True) if config.lora_config.trains(spec)], before


def stage_buffers(config: AllConfig, stage: int) -> list[BufferPlan]:
    """The flat buffers that a rank's trained parameters and their gradients lie in."""
    coordinates, gradient = stage_coordinates(config, stage), config.training_config.gradient
    named, keys = _trained(config, stage), None
    if gradient.zero_stage >= 2:
        keys = _cells_of_parameters(config, stage)[0]
    elif gradient.overlap_grad_reduce:
        keys = [chunk for _, _, chunk in named]
    parameters = [(place(spec, coordinates), parameter.dtype) for spec, parameter, _ in named]
    return plan_buffers(parameters, gradient.type_for, gradient.bucket_rule(coordinates), keys)


def stage_residences(config: AllConfig, stage: int) -> list[tuple[BufferPlan, Residence]]:
    """The same, with what of each a rank keeps, and which slots the rest has while it is needed."""
    keys, cells = _cells_of_parameters(config, stage)
    coordinates, zero = stage_coordinates(config, stage), config.training_config.gradient.zero
    return [(plan, plan_residence(plan, keys, cells, coordinates, *zero)) for plan in stage_buffers(config, stage)]


def buffer_elements(config: AllConfig, stage: int) -> int:
    """Elements of the flat buffers that a rank's parameters (or gradients) lie in."""
    return sum(plan.size for plan in stage_buffers(config, stage))
