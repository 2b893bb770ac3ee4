"""The distributed optimizer against the plain one: each rank updates its part, and nothing else changes."""

from unittest.mock import patch

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import LOSS, Trained, check_layout, train

FLAGS = f"{TINY} --train-iters 3 --global-batch-size 8 --lr 1e-2 --weight-decay 0.1 --lr-decay-style constant"
UNCLIPPED = f"{FLAGS} --clip-grad 0"
"""Flags without clipping: the gradient's norm would be summed over other parts in another order; all else is the same
arithmetic in the same order."""
LAYOUTS = {
    "dp2": (2, ""),
    "dp4": (4, ""),
    "dp2 tp2 sp": (4, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "dp2 pp2": (4, "--pipeline-model-parallel-size 2"),
}
ROWS = [*((layout, "") for layout in LAYOUTS), ("dp2", "--bf16"), ("dp2 tp2 sp", "--bf16 --grad-reduce-in-bf16")]


def both(layout: str, flags: str) -> tuple[Trained, Trained]:
    """Rank 0's outcome of a run with --use-distributed-optimizer and of one without."""
    world, layout_flags = LAYOUTS[layout]
    return tuple(run(world, train, f"{flags} {layout_flags} {more}")[0] for more in ("--use-distributed-optimizer", ""))


@pytest.mark.parametrize(("layout", "flags"), ROWS)
def test_it_is_the_plain_optimizer_bit_for_bit(layout, flags):
    """Losses, first gradients, final weights, moments and float32 values are equal, and nearly all elements have moved,
    so a part that nobody updates or gathers would be seen."""
    ours, plain = both(layout, f"{UNCLIPPED} {flags}")
    assert ours.losses == plain.losses and len(set(plain.losses)) == 3
    for kind in ("gradients", "initial", "final", "state"):
        found, wanted = getattr(ours, kind), getattr(plain, kind)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{kind} {name}")
    # Moments of float32 values: three small steps do not move a bf16 weight of 1.
    moved = {name: ours.state.get(f"main_param.{name}", ours.final[name]) != ours.initial[name] for name in ours.final}
    assert {name: where.mean() for name, where in moved.items() if where.mean() < 0.99} == {}


def test_a_clipped_run_is_the_plain_one():
    """With clipping, whose norm is summed over shards, losses and norms are the plain optimizer's to rounding."""
    ours, plain = both("dp2 tp2 sp", f"{FLAGS} --clip-grad 0.5")
    np.testing.assert_allclose(ours.losses, plain.losses, rtol=LOSS)
    np.testing.assert_allclose(ours.gradient_norms, plain.gradient_norms, rtol=1e-6)
    assert min(plain.gradient_norms) > 0.5, "clipping must act"


def test_several_instances_of_the_state():
    """--num-distributed-optimizer-instances 2 on four replicas, states cut over two: gradients are summed over both
    instances, and results are one process's."""
    flags = "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    check_layout(f"{TINY} --global-batch-size 8", 4, flags)


def train_with_a_part_left_out(backend, flags: str) -> Trained:
    """Train while rank 1 leaves the last of the spans that it owns out of every update."""
    from pynative.optimizer.optimizer import FlatOptimizer

    step = FlatOptimizer.step

    def forgetful(optimizer, *arguments) -> None:
        optimizer._sweeps = optimizer._sweeps[: len(optimizer._sweeps) - (backend.rank == 1)]
        with patch.object(FlatOptimizer, "step", step):
            step(optimizer, *arguments)

    with patch.object(FlatOptimizer, "step", forgetful):
        return train(backend, flags)


def test_a_part_that_nobody_updates_is_seen():
    """The comparison of `test_it_is_the_plain_optimizer_bit_for_bit` finds a span of the weights that no rank
    updates."""
    flags = f"{UNCLIPPED} --train-iters 1 --use-distributed-optimizer"
    whole, broken = run(2, train, flags)[0], run(2, train_with_a_part_left_out, flags)[0]
    assert whole.losses == broken.losses
    assert [name for name in whole.final if not np.array_equal(whole.final[name], broken.final[name])]
