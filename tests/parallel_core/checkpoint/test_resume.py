"""--load of a checkpoint that does not fit the flags: refused before ranks start, by its manifest alone."""

from dataclasses import replace

import numpy as np
import pytest

from mapping.reading import read
from parallel_core.checkpoint import commit
from parallel_core.checkpoint.writer import file_name, write_manifest
from parallel_core.costs import StagePlan
from parallel_core.optimizer import get_optimizer_param_scheduler
from tests.support.checkpoint_writing import run_at, write_stages
from tests.support.mapping.lines import line

FLAGS = "--mock-data --num-layers 2 --hidden-size 32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which a run of `FLAGS` saved iteration 4 at 32 samples; weights are zeros."""
    root, config = tmp_path_factory.mktemp("saved"), read(line(FLAGS), world_size=1).config
    schedule = get_optimizer_param_scheduler(config).state_dict() | {"num_steps": 32}
    weights = {spec.name: (spec, np.zeros(spec.shape, np.float32)) for spec in StagePlan(config, 0).parameters}
    partial = commit.begin(root, 4)
    write_stages(partial, [weights], 1)
    write_manifest(partial, replace(run_at(4), config=config.to_dict(), scheduler=schedule), [file_name(0, 0)])
    commit.publish(root, 4)
    return root


WRONG = {
    "--lr 1e-4": "--lr: max_lr is 0.0001 by the flags and 0.001 in the checkpoint; add --override-opt_param",
    "--train-iters 20": "--lr-decay-iters, or --train-iters without it: the learning rate is scheduled",
    "--rotary-base 500 --position-embedding-type rope": "--position-embedding-type rope",
    "--hidden-size 64": "of the model's 28 weights do not fit, the first is ",
    "--num-layers 3": "of the model's 40 weights do not fit, the first is decoder.layers.2",
}


@pytest.mark.parametrize("change", WRONG)
def test_a_checkpoint_that_does_not_fit_is_refused(folder, change):
    """Another schedule, network or shape of weights is an error that begins with --load and names the difference; there
    is none where files are not looked at."""
    flags = [*line(f"{FLAGS} {change}"), "--load", str(folder)]
    errors = read(flags, world_size=1, check_files=True).errors
    assert any(WRONG[change] in error for error in errors), errors
    assert all(error.startswith(f"--load {folder}: ") for error in errors)
    assert read(flags, world_size=1).errors == []


@pytest.mark.parametrize(
    ("change", "world_size"),
    [
        ("", 1),
        ("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", 8),
        ("--lr 1e-4 --override-opt_param-scheduler", 1),
        ("--lr 1e-4 --finetune", 1),
        ("--lr 1e-4 --no-load-optim", 1),
        ("--lr 1e-4 --lora-target-modules linear_qkv --lora-r 4", 1),
        ("--num-layers 3 --dist-ckpt-strictness log_all", 1),
    ],
)
def test_a_checkpoint_that_can_be_loaded_is_not(folder, change, world_size):
    """A checkpoint is accepted at another layout and with differences that a flag allows, such as --finetune."""
    flags = [*line(f"{FLAGS} {change}"), "--load", str(folder)]
    assert read(flags, world_size=world_size, check_files=True).errors == []
