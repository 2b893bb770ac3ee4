"""Batches that grow: the same run under every layout, and each step that of a run whose batches have its size."""

import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import Rows, differences, train
from tests.support.pipelines import pipeline

SAMPLES = "--train-samples 28 --adam-eps 1e-5 --hidden-dropout 0.1 --lr-warmup-samples 4"
MODEL = TINY.replace("--train-iters 2", SAMPLES) + " --num-layers 4 --micro-batch-size 1"
RAMP = f"{MODEL} --global-batch-size 12 --rampup-batch-size 4 4 8"
"""Flags of a run with steps of 4, 8 and 12 samples, and four samples that are left."""


@pytest.mark.parametrize(
    "layout",
    ["--tensor-model-parallel-size 1", pipeline("interleaved", 2), pipeline("zb-h1", 2)],
    ids=["dp", "vpp", "zb"],
)
def test_layouts(layout):
    """Under each layout a run whose batch grows equals one process's: ranks cut each step anew and schedules differ
    from step to step."""
    (expected,) = run(1, train, RAMP)
    assert len(expected.losses) == 3
    results = run(2, train, f"{RAMP} {layout}")
    assert differences(results, expected) == {}


def test_the_first_step_is_that_of_a_small_batch():
    """--rampup-batch-size 4 4 8: the first step equals that of a global batch of 4, the second does not."""
    (grown,), (small,) = run(1, train, RAMP), run(1, train, f"{MODEL} --global-batch-size 4")
    assert grown.losses[0] == small.losses[0] and grown.gradient_norms[0] == small.gradient_norms[0]
    assert grown.losses[1] != small.losses[1]


class Few(Rows):
    """Eleven samples: steps of four and of six of them, and one sample that is left."""

    def __len__(self) -> int:
        return 11


def train_on_few(backend, flags: str) -> tuple:
    return train(backend, flags, dataset=Few())


@pytest.mark.parametrize("flags", ["--no-drop-remainder", ""])
def test_a_later_pass_goes_on_where_it_stopped(tmp_path, flags):
    """A run whose batch grows, resumed in a later pass over the data, reads what the uninterrupted run reads."""
    growing = f"{MODEL} --global-batch-size 6 --rampup-batch-size 4 2 6 {flags}"
    (whole,) = run(1, train_on_few, growing)
    assert len(whole.losses) == 5
    run(1, train_on_few, f"{growing} --exit-interval 3 --save {tmp_path} --save-interval 100")
    (resumed,) = run(1, train_on_few, f"{growing} --load {tmp_path}")
    assert resumed.losses == whole.losses[3:]
