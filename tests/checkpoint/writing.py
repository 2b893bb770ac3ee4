"""Checkpoints for the tests, written as the ranks of a job would, one after the other."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.writer import LocalTensor, write_manifest, write_part
from parallel_core.sharding import ShardSpec

Whole = Mapping[str, tuple[ShardSpec, np.ndarray]]


def run_at(iteration: int) -> Run:
    """A run that stands at an iteration."""
    return Run(
        iteration=iteration,
        consumed_samples=4 * iteration,
        topology={"world_size": 1},
        config={"model_config": {"hidden_size": 8}},
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


def save(root: Path, iteration: int, stages: list[Whole], tensor_size: int = 1, keep: int = 5) -> Path:
    """A published checkpoint."""
    partial = commit.begin(root, iteration)
    write_stages(partial, stages, tensor_size)
    write_manifest(partial, run_at(iteration), tensor_size, len(stages))
    return commit.publish(root, iteration, keep)


def one_tensor(value: float) -> Whole:
    """The smallest model there is, recognisable by its value."""
    spec = ShardSpec(name="w", shape=(4, 2), axis=0)
    return {"w": (spec, np.full(spec.shape, value, np.float32))}
