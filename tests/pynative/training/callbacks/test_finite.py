"""FiniteCallback: a gradient that is not finite stops the run at once, and the error names its rank, parameter and
iteration."""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import pretrain_tiny

FLAGS = f"{TINY} --global-batch-size 8 --rerun-mode disabled"
NAME = "decoder.layers.1.mlp.linear_fc2.weight"


def spoil(backend, flags: str, rank: int, backward: int) -> float:
    """Train while one rank sets an element of a gradient to NaN after its n-th backward (`backward`); the last step's
    gradient norm."""
    from parallel_core.schedules import Backward
    from pynative.pipeline_parallel.stage import Stage

    real, done = Stage.compute, []

    def compute(stage, action, received):
        result = real(stage, action, received)
        done.extend([action] if isinstance(action, Backward) else [])
        if backend.rank == rank and len(done) == backward and isinstance(action, Backward):
            (parameter,) = (p for p in stage.model.get_parameters() if p.meta.spec.name == NAME)
            parameter.main_grad.asnumpy().reshape(-1)[-1] = np.nan
        return result

    with patch.object(Stage, "compute", compute):
        return pretrain_tiny(backend, flags).result.gradient_norm


@pytest.mark.parametrize(("layout", "backward", "iteration"), [
    ("", 1, 1),
    ("--use-distributed-optimizer", 3, 2),
    ("--use-distributed-optimizer", 2, 1),
    ("--pipeline-model-parallel-size 2", 2, 1),
])  # fmt: skip
def test_rank_parameter_and_iteration_are_named(layout, backward, iteration):
    """The error names the rank whose own gradient is not finite, though the sum carries it to all, with parameter and
    iteration."""
    message = rf"rank 1: the gradient of {NAME} is not finite in iteration {iteration}\."
    with pytest.raises(FloatingPointError, match=message):
        run(2, spoil, f"{FLAGS} {layout}", 1, backward)


def looked_at(backend, flags: str) -> list[str]:
    """Events of one step in order: "backward" of a micro-batch, "start" of a reduction, "n read", the flags read by the
    check."""
    from pynative.distributed.bucket import ParamAndGradBucket, Transfer
    from pynative.tape.autograd import HandedOver

    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((HandedOver, "backward"), (Transfer, "start"), (ParamAndGradBucket, "check_gradients")):
            real = getattr(owner, name)

            def noted(self, *args, real=real, name=name):
                seen.append(name if name != "check_gradients" else f"{len(self._finite)} read")
                return real(self, *args)

            patch.setattr(owner, name, noted)
        pretrain_tiny(backend, f"{flags} --train-iters 1")
    return seen


def test_gradients_are_looked_at_once_a_step():
    """The check runs once a step, not after each micro-batch, and reads its result only when the reduction is under
    way."""
    assert run(2, looked_at, FLAGS)[0] == ["backward", "backward", "start", "1 read"]


def test_without_the_check_the_update_is_skipped():
    """--no-check-for-nan-in-loss-and-grad: the run with a NaN gradient goes on, its norm being reported as
    not finite."""
    for norm in run(2, spoil, f"{FLAGS} --no-check-for-nan-in-loss-and-grad --use-distributed-optimizer", 1, 4):
        assert not np.isfinite(norm)


def warnings_of(scales: list[float | None], has_scaler: bool = True, spike: str = "") -> list[str]:
    """Warnings of SkippedStepsCallback over steps with these loss scales, each skipped (as a spike, if one is given);
    None: a step that was made."""
    from pynative.training.callbacks import SkippedStepsCallback

    callback, cell = SkippedStepsCallback(), SimpleNamespace(loss_scaler=object() if has_scaler else None)
    with patch("pynative.training.callbacks.finite.warn") as warn:
        for iteration, scale in enumerate(scales, 1):
            result = SimpleNamespace(skipped=scale is not None, loss_scale=scale or 1.0, spike=spike)
            callback.on_step_end(SimpleNamespace(iteration=iteration, result=result, step_cell=cell))
    return [call.args[0] for call in warn.call_args_list]


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        ([256.0] * 20, ["iteration 10: the last 10 steps", "iteration 20: the last 20 steps"]),
        ([2.0**n for n in range(32, 0, -1)], []),
        ([256.0] * 9 + [None] + [256.0] * 9, []),
        ([4.0, 2.0] + [1.0] * 10, ["iteration 12: the last 10 steps"]),
    ],
    ids=["constant", "shrinking", "with one that was made", "as small as may be"],
)
def test_a_run_that_stands_still_is_warned_of(scales, said):
    """Ten skipped steps in a row with the same scale are warned of with --loss-scale; steps while the scale still
    shrinks, or with a made step between, are not."""
    found = warnings_of(scales)
    assert [message[: len(start)] for message, start in zip(found, said, strict=True)] == said
    assert all("--loss-scale" in message for message in found)


def test_without_a_scaler_nobody_is_told_of_one():
    """Ten skipped steps of a run without a loss scaler: one warning that names --lr and no scale."""
    (message,) = warnings_of([1.0] * 10, has_scaler=False)
    assert "the last 10 steps" in message and "--lr" in message and "scale" not in message


@pytest.mark.parametrize("has_scaler", [False, True])
def test_spikes_are_not_said_to_be_no_numbers(has_scaler):
    """Ten steps in a row that --loss-spike-action skips: one warning that calls them spikes and names that flag."""
    (message,) = warnings_of([1.0] * 10, has_scaler, spike="a loss spike: 9.0 standard deviations")
    assert "are spikes" in message and "--loss-spike-action report" in message and "not finite" not in message
