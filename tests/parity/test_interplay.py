"""Combinations of features against one process; tests of each feature alone are elsewhere."""

import numpy as np
import pytest

from tests.support import checkpoint_jobs as jobs
from tests.support.distributed import run
from tests.support.documents import train_on_documents
from tests.support.engine import TINY
from tests.support.forward_steps import train_on_sums
from tests.support.layouts import Rows, check_layout, train
from tests.support.pretraining import evaluated

BASE = f"{TINY} --num-layers 4 --global-batch-size 8"
DROPOUT = "--attention-dropout 0.2 --hidden-dropout 0.1"
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
RING = "--context-parallel-size 2"
ULYSSES = f"{RING} --context-parallel-algo ulysses_cp_algo"
HYBRID = "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"
PP2, PP4 = "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4"
VPP2, ZB = "--virtual-pipeline-model-parallel-size 2", "--pipeline-schedule zb-h1"
ALONE = "--standalone-embedding-stage"


@pytest.mark.parametrize(
    ("model", "world", "layout"),
    [
        ("", 2, f"{PP2} {ALONE} {VPP2}"),
        ("", 4, f"{PP2} {ALONE} {VPP2} {TP2_SP}"),
        ("", 4, f"{PP2} {ALONE} {RING}"),
        ("--noop-layers 1", 4, f"{PP4} {ZB}"),
        ("--noop-layers 1,2", 2, f"{PP2} {VPP2}"),
        ("--num-layers 8 --noop-layers 1,5", 4, f"{PP4} {VPP2}"),
    ],
)
def test_stages_and_chunks_without_a_layer(model, world, layout):
    """A pipeline stage or virtual chunk that has no layer hands its input on, forwards and backwards; embeddings are
    tied, dropout is on."""
    check_layout(f"{BASE} {DROPOUT} {model}", world, layout)


@pytest.mark.parametrize("schedule", ["", ZB])
@pytest.mark.parametrize("batch", [2, 6])
def test_fewer_micro_batches_than_stages(batch, schedule):
    """One micro-batch, and three, on four pipeline stages, by 1F1B and by ZB-H1: one process's results."""
    check_layout(f"{BASE} --global-batch-size {batch} {DROPOUT}", 4, f"{PP4} {schedule}")


@pytest.mark.parametrize("size", [3, 5])
def test_groups_of_interleaving_that_do_not_divide(size):
    """Five micro-batches on virtual stages in groups of 3 and 2, or in one group: one process's results."""
    group = f"--microbatch-group-size-per-virtual-pipeline-stage {size}"
    check_layout(f"{BASE} --global-batch-size 10 {DROPOUT}", 2, f"{PP2} {VPP2} {group}")


class PartlyMasked(Rows):
    """Rows whose loss masks are zero in whole micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.mask[2:4] = self.mask[6:10] = 0.0


def train_on_partly_masked(backend, flags: str) -> tuple:
    return train(backend, flags, dataset=PartlyMasked())


PER_TOKEN = "--calculate-per-token-loss"


@pytest.mark.parametrize(
    ("averaging", "world", "layout"),
    [
        ("", 2, f"{PP2} {ZB}"),
        ("", 4, RING),
        (PER_TOKEN, 2, f"{PP2} --pipeline-schedule gpipe"),
        (PER_TOKEN, 2, f"{PP2} {VPP2}"),
        (PER_TOKEN, 4, ULYSSES),
        (PER_TOKEN, 4, f"{PP2} {RING}"),
    ],
)
def test_micro_batches_in_which_no_token_counts(averaging, world, layout):
    """Micro-batches with a loss mask of zeros count as zero in an average of averages, and not at all per token, as in
    one process."""
    check_layout(f"{BASE} {averaging}", world, layout, how=train_on_partly_masked)


def train_on_lengths(backend, flags: str) -> tuple:
    """Train with Megatron's forward step on micro-batches of different lengths, cut over context-parallel ranks."""
    from mindspore import Tensor

    from pynative.context_parallel import get_batch_on_this_cp_rank

    def forward_step(data_iterator, model):
        batch = {name: Tensor(value) for name, value in next(data_iterator).items()}
        return model(**get_batch_on_this_cp_rank(batch)), lambda loss: (loss, {"lm loss": loss})

    rows, lengths = Rows(), (16, 8, 12, 4, 16, 8, 4, 12)
    batches = [
        {name: np.stack([rows[2 * i][name][:length], rows[2 * i + 1][name][:length]]) for name in rows[0]}
        for i, length in enumerate(lengths)
    ]
    return train(backend, flags, train_data_loader=batches, forward_step_func=forward_step)


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, RING),
        (4, f"{ULYSSES} {TP2_SP}"),
        (4, f"{PP2} {RING} {ZB}"),
        (4, f"{PP2} {ULYSSES} {VPP2}"),
    ],
)
def test_lengths_that_vary_are_cut(world, layout):
    """Micro-batches of different lengths under context parallelism: positions and dropout masks follow from each one's
    own length, as in one process."""
    check_layout(f"{BASE} --global-batch-size 16 {DROPOUT} --variable-seq-lengths", world, layout, how=train_on_lengths)


@pytest.mark.parametrize(
    ("how", "averaging", "layout"),
    [
        (train_on_sums, PER_TOKEN, f"{PP2} {VPP2} {RING}"),
        (train_on_documents, "", f"{PP2} {VPP2} {RING}"),
        (train_on_documents, "", f"{PP2} {ZB} {TP2_SP}"),
    ],
)
def test_forward_steps_and_documents_in_a_pipeline(how, averaging, layout):
    """A forward step that returns sums, and document masks from the end-of-document token, which every stage needs: one
    process's results."""
    check_layout(f"{BASE} {averaging}", 4, layout, how=how)


@pytest.mark.parametrize(("world", "layout"), [(2, RING), (2, TP2_SP), (4, f"{PP2} {VPP2} {ULYSSES}")])
def test_evaluation(world, layout):
    """Validation losses, computed without dropout, and the training losses around them are one process's."""
    flags = f"{BASE} {DROPOUT} --eval-interval 1 --eval-iters 2"
    (expected,) = run(1, evaluated, flags)
    results = run(world, evaluated, f"{flags} {layout}")
    assert all(result == results[0] for result in results)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, f"{PP2} {VPP2}"), (4, f"{ULYSSES} {TP2_SP}")), ((4, HYBRID), (2, f"{PP2} {ALONE}"))],
)
def test_a_run_goes_on_under_another_layout(tmp_path, before, after):
    """Two steps at one layout, saved, and two more at another have the losses of four steps in one process, dropout
    included."""
    flags = f"--lr-decay-iters 4 --num-layers 4 --global-batch-size 8 --noop-layers 0,3 {DROPOUT}"
    (whole,) = run(1, jobs.train, f"{flags} --train-iters 4")
    losses = []
    for (world, layout), more in ((before, f"--train-iters 2 --save {tmp_path}"), (after, f"--load {tmp_path}")):
        losses += run(world, jobs.train, f"{flags} {layout} --train-iters 4 {more}")[0].losses
    np.testing.assert_allclose(losses, whole.losses, rtol=1e-5)
