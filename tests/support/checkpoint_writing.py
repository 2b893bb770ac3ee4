"""Checkpoints for the tests, written as the ranks of a job would, one after the other."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.writer import LocalTensor, write_manifest, write_part
from parallel_core.sharding import ShardSpec

Whole = Mapping[str, tuple[ShardSpec, np.ndarray]]


def run_at(iteration: int, vocabulary: tuple[int, int] = (5, 8)) -> Run:
    """A run that stands at an iteration; ids of its tokenizer, and that number padded."""
    return Run(
        iteration=iteration,
        consumed_samples=4 * iteration,
        topology={"world_size": 1},
        config={"model_config": {"unpadded_vocab_size": vocabulary[0], "vocab_size": vocabulary[1]}},
        scheduler={"num_steps": 4 * iteration, "max_lr": 1e-3},
        optimizer=OptimizerRecord("adam", iteration, ("exp_avg",)),
        rng={"seed": 1234},
    )


def write_stages(partial: Path, stages: list[Whole], tensor_size: int) -> None:
    """All places' files. A tensor is given whole, on the stage that holds it."""
    for stage, whole in enumerate(stages):
        for rank in range(tensor_size):
            local = {
                name: LocalTensor(spec, spec.cut(values, rank, tensor_size)) for name, (spec, values) in whole.items()
            }
            write_part(partial, local, rank, tensor_size, stage)


def save(
    root: Path,
    iteration: int,
    stages: list[Whole],
    tensor_size: int = 1,
    keep: int = 5,
    vocabulary: tuple[int, int] = (5, 8),
    retain: int | None = None,
) -> Path:
    """A published checkpoint."""
    partial = commit.begin(root, iteration)
    write_stages(partial, stages, tensor_size)
    write_manifest(partial, run_at(iteration, vocabulary), tensor_size, len(stages))
    return commit.publish(root, iteration, keep, retain)


def one_tensor(value: float) -> Whole:
    """The smallest model there is, recognisable by its value."""
    spec = ShardSpec(name="w", shape=(4, 2), axis=0)
    return {"w": (spec, np.full(spec.shape, value, np.float32))}


def shard(reader: CheckpointReader, spec: ShardSpec, rank: int, size: int) -> np.ndarray:
    """A rank's shard as read; NaN where nothing was read."""
    return reader.read(spec.name, spec, rank, size, np.full(spec.local_shape(size), np.nan, np.float32))


def whole(reader: CheckpointReader, spec: ShardSpec) -> np.ndarray:
    """A whole tensor as read."""
    return shard(reader, spec, 0, 1)
