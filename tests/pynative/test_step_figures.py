"""Figures that layers report in a step, and auxiliary losses, whose gradient enters on an activation with the step's
averaging."""

import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.numerics.averaging import Averaging, MicroBatchWeight
from parallel_core.numerics.loss_scale import ConstantLossScaler
from parallel_core.step_figures import Figure
from pynative import step_figures
from pynative.startup import device
from pynative.step_figures import MoEAuxLossAutoScaler, StepFigures, collected, with_loss
from pynative.tape import autograd

ROWS = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


def gradient_of(attach, figures=None):
    """d/dx of sum(x) at ROWS, with the auxiliary loss sum(x^2) attached to x by `attach`: 1 + seed x 2 x."""
    device.initialize("CPU", "host", 1, 1)
    with autograd.recording(), collected(figures):
        x = autograd.leaf(Tensor(ROWS))
        y = attach(x, (x * x).sum())
        assert np.array_equal(y.asnumpy(), ROWS)
        autograd.backward([y.sum()], [Tensor(np.float32(1.0))])
    return autograd.take_gradient(x).asnumpy()


@pytest.mark.parametrize("per_token, seed", [(False, 8.0 / 4), (True, 8.0 * 3)])
def test_the_seed_is_the_main_losses(per_token, seed):
    """An auxiliary loss's gradient is multiplied by the main loss's seed: loss scale / micro-batches, with
    --calculate-per-token-loss loss scale x tokens."""
    averaging = Averaging(per_token=per_token, micro_batches=4, replicas=2, loss_scaler=ConstantLossScaler(8.0))
    gradient = gradient_of(lambda x, loss: with_loss(x, loss, MicroBatchWeight(3.0)), StepFigures((), averaging))
    np.testing.assert_allclose(gradient, 1.0 + seed * 2 * ROWS, rtol=1e-6)


def test_outside_of_a_step_the_scale_is_megatrons(monkeypatch):
    """Without a step's figures MoEAuxLossAutoScaler's scale acts: 1, or what set_loss_scale was given."""
    np.testing.assert_allclose(gradient_of(MoEAuxLossAutoScaler.apply), 1.0 + 2 * ROWS)
    monkeypatch.setattr(MoEAuxLossAutoScaler, "main_loss_backward_scale", None)
    MoEAuxLossAutoScaler.set_loss_scale(Tensor(np.float32(0.5)))
    np.testing.assert_allclose(gradient_of(MoEAuxLossAutoScaler.apply), 1.0 + ROWS)


def test_shares_are_added_up_by_layer():
    """`add` sums by layer, counted from 1, averaged over micro-batches and replicas; nothing is recorded while the tape
    does not record, as in the first run of a recomputed part."""
    figures = StepFigures((Figure("z_loss", (2,), layers=1),), Averaging(per_token=False, micro_batches=2, replicas=2))
    with collected(figures):
        assert step_figures.current() is None
        with autograd.recording():
            for value in (1.0, 2.0):
                step_figures.current().add("z_loss", Tensor(np.float32(value)), layer=2)
            step_figures.current().add("unplanned", Tensor(np.float32(1.0)))
    assert figures.vector() == [0.0, 3.0]
    assert figures.whole(figures.vector())["z_loss"].tolist() == [0.0, 0.75]


def test_running_means_are_a_steps_own():
    """`running_mean` is the mean over a layer's micro-batches so far, for the load of global_aux_loss."""
    figures = StepFigures((), Averaging(per_token=False, micro_batches=2, replicas=1))
    figures.running_mean("count", 1, np.array([1.0, 2.0]))
    assert figures.running_mean("count", 1, np.array([3.0, 4.0])).tolist() == [2.0, 3.0]
    assert figures.running_mean("count", 2, np.array([3.0, 4.0])).tolist() == [3.0, 4.0]


def test_the_largest_of_all_micro_batches_is_told():
    """A figure `is_largest` keeps each head's maximum over micro-batches, at its place among all heads; -inf where
    nothing was reported."""
    figures = StepFigures(
        (Figure("top", (2, 3), is_loss=False, is_largest=True),),
        Averaging(per_token=False, micro_batches=2, replicas=1),
    )
    for values in ([1.0, 5.0], [2.0, 4.0]):
        figures.add("top", Tensor(np.array(values, np.float32)), layer=2, first=1)
    assert figures.vector() == []
    assert figures.whole([], figures.largest())["top"].tolist() == [[-np.inf] * 3, [-np.inf, 2.0, 5.0]]
