"""Saving: the first rank that holds a shard writes it, one file a writer; rank 0 publishes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.huggingface.write import add_huggingface
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.writer import LocalTensor, is_written, write_manifest, write_part, writers
from parallel_core.config import AllConfig
from pynative import parallel_state
from pynative.checkpointing.optimizer_state import written_state
from pynative.checkpointing.state import RunState
from pynative.optimizer.optimizer import FlatOptimizer
from pynative.parameter import place_of, whole_parameters
from pynative.tensor_parallel.random import get_rng_tracer

TOKENIZER_FILES = ("vocab_file", "merge_file", "tokenizer_model")


def save_checkpoint(directory: Path, state: RunState, keep: int | None = None) -> Path:
    """Write `directory`/iter_<iteration> and make it the latest; all ranks call this. Its path.

    A checkpoint of the same iteration is replaced. Returns when it is on the disk. keep: how many are left there, by
    default what the configuration says.
    """
    world = parallel_state.get_world_group()
    optimizer = _saved_optimizer(state)
    is_sharded = optimizer is not None and optimizer.buffers.is_sharded
    files = writers(parallel_state.get_topology(), sharded=is_sharded)
    partial = commit.partial_directory(directory, state.iteration)
    if world.rank == 0:
        commit.begin(directory, state.iteration)
    world.barrier()
    tensors = _local_tensors(state)
    if world.rank in files:
        write_part(partial, files[world.rank], tensors)
    world.barrier()
    if world.rank == 0:
        write_manifest(partial, _run(state), files.values())
        training = state.config.training_config
        if training.checkpoint.convert_to_huggingface:
            add_huggingface(partial, training.checkpoint.huggingface_model_type)
        if keep is None:
            keep = training.checkpoint.keep_checkpoint_max if training.checkpoint.save_retain_interval is None else 1
        commit.publish(directory, state.iteration, keep, training.checkpoint.save_retain_interval)
    world.barrier()
    return directory / commit.checkpoint_name(state.iteration)


def _local_tensors(state: RunState) -> dict[str, LocalTensor]:
    """Weights by name and optimizer state by "<state>.<name>", of the shards that this rank writes. All ranks call
    this."""
    coordinates = parallel_state.get_coordinates()
    tensors: dict[str, LocalTensor] = {}
    for parameter in whole_parameters(state.model):
        if is_written(parameter.meta.spec, coordinates):
            values = parameter.asnumpy().copy()  # The next one that is fetched may lie in the same memory.
            tensors[parameter.meta.spec.name] = LocalTensor(place_of(parameter), values)
    optimizer = _saved_optimizer(state)
    return tensors if optimizer is None else tensors | written_state(optimizer)


def _saved_optimizer(state: RunState) -> FlatOptimizer | None:
    return None if state.config.training_config.checkpoint.no_save_optim else state.step_cell.optimizer


def _record(optimizer: FlatOptimizer) -> OptimizerRecord:
    return OptimizerRecord(optimizer.config.optimizer_type, optimizer.steps, optimizer.state_names)


def _run(state: RunState) -> Run:
    training, scheduler, optimizer = state.config.training_config, state.step_cell.scheduler, _saved_optimizer(state)
    scaler = None if optimizer is None else optimizer.grad_scaler
    return Run(
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        topology=_topology(),
        config=_config(state.config),
        scheduler=scheduler.state_dict() if scheduler else {},
        optimizer=None if optimizer is None else _record(optimizer),
        loss_scaler=None if scaler is None else scaler.state_dict(),
        rng=None if training.checkpoint.no_save_rng else {"seed": get_rng_tracer().seed},
    )


def _topology() -> dict[str, int]:
    sizes = asdict(parallel_state.get_topology())
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _config(config: AllConfig) -> dict:
    """The configuration; the tokenizer's files by their absolute path, for a reader that is started elsewhere."""
    sections = config.to_dict()
    files = {name: sections["dataset_config"][name] for name in TOKENIZER_FILES}
    sections["dataset_config"] |= {name: path and str(Path(path).absolute()) for name, path in files.items()}
    return sections
