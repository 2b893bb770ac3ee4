"""Checkpoints for the tests, written as the ranks of a job would, one after the other."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.writer import LocalTensor, file_name, is_written, write_manifest, write_part
from parallel_core.sharding import Cut, ShardSpec, place

Whole = Mapping[str, tuple[ShardSpec, np.ndarray]]


def run_at(iteration: int, vocabulary: tuple[int, int] = (5, 8), run_id: str = "a run") -> Run:
    """The manifest's record of a run that stands at an iteration; vocabulary: (number of ids, the same padded)."""
    return Run(
        iteration=iteration,
        consumed_samples=4 * iteration,
        topology={"world_size": 1},
        config={"model_config": {"unpadded_vocab_size": vocabulary[0], "vocab_size": vocabulary[1]}},
        scheduler={"num_steps": 4 * iteration, "max_lr": 1e-3},
        optimizer=OptimizerRecord("adam", iteration, ("exp_avg",)),
        rng={"seed": 1234},
        run_id=run_id,
    )


def write_stages(partial: Path, stages: list[Whole], tensor_size: int) -> None:
    """Write the files of every stage and tensor-parallel rank; stages: whole tensors (with specs) of each stage."""
    for stage, whole in enumerate(stages):
        for rank in range(tensor_size):
            coordinates = {"tp": (rank, tensor_size)}
            local = {
                name: LocalTensor(place(spec, coordinates), place(spec, coordinates).cut(values))
                for name, (spec, values) in whole.items()
                if is_written(spec, coordinates)
            }
            write_part(partial, file_name(rank, stage), local)


def save(
    root: Path,
    iteration: int,
    stages: list[Whole],
    tensor_size: int = 1,
    keep: int = 5,
    vocabulary: tuple[int, int] = (5, 8),
    retain: int | None = None,
    run_id: str = "a run",
) -> Path:
    """Write and publish a checkpoint, and delete those of its run beyond `keep`; its folder."""
    commit.make_way(root, iteration, run_id)
    partial = commit.begin(root, iteration)
    write_stages(partial, stages, tensor_size)
    names = [file_name(rank, stage) for stage in range(len(stages)) for rank in range(tensor_size)]
    write_manifest(partial, run_at(iteration, vocabulary, run_id), names)
    whole = commit.publish(root, iteration)
    with suppress(OSError):
        for path in commit.surplus(root, whole, run_id, keep, retain):
            commit.delete(path)
    return whole


def one_tensor(value: float) -> Whole:
    """A model of one tensor "w" [4, 2] that is filled with `value`."""
    spec = ShardSpec(name="w", shape=(4, 2), cuts=(Cut(0),))
    return {"w": (spec, np.full(spec.shape, value, np.float32))}


def shard(reader: CheckpointReader, spec: ShardSpec, rank: int, size: int) -> np.ndarray:
    """A rank's shard of a tensor as the reader fills it; NaN where it read nothing."""
    own = place(spec, {"tp": (rank, size)})
    return reader.read(own.spec.name, own, np.full(own.shape, np.nan, np.float32))


def whole(reader: CheckpointReader, spec: ShardSpec) -> np.ndarray:
    """A whole tensor as the reader fills it."""
    return shard(reader, spec, 0, 1)
