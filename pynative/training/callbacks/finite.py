"""Callbacks about steps whose loss or gradients are not finite."""

from pynative.startup.log import warn
from pynative.training.callbacks.base import RunCallback, TrainingState


class FiniteCallback(RunCallback):
    """Raises FloatingPointError after a step whose loss or gradient norm is not finite, and whose update was therefore
    not made; not with a loss scaler."""

    def on_step_end(self, state: TrainingState) -> None:
        result = state.result
        if not result.is_finite and state.step_cell.loss_scaler is None:
            raise FloatingPointError(
                f"iteration {state.iteration}: loss {result.loss}, gradient norm {result.gradient_norm}: not finite. "
                f"Lower --lr or --clip-grad, check the data, or train on with --no-check-for-nan-in-loss-and-grad, "
                f"which skips such updates" + (f"\n{result.explanation}" if result.explanation else "")
            )


class SkippedStepsCallback(RunCallback):
    """Warns of a run that stands still: after every `interval` (10) steps in a row whose updates were skipped at one
    loss scale (without a scaler: 1)."""

    interval = 10
    """The number of steps, skipped one after another at the same scale, after which it warns, and warns again."""

    def __init__(self) -> None:
        self._in_a_row, self._scale = 0, 0.0

    def on_step_end(self, state: TrainingState) -> None:
        result = state.result
        same = result.skipped and result.loss_scale == self._scale
        self._in_a_row = self._in_a_row + 1 if same else int(result.skipped)
        self._scale = result.loss_scale
        if self._in_a_row and self._in_a_row % self.interval == 0:
            which, fix = "losses or gradients", "Lower --lr or --clip-grad, check the data"
            if state.step_cell.loss_scaler is not None:
                which = f"gradients, at a loss scale of {self._scale:g}, which stays,"
                fix = "Give a smaller --loss-scale or leave it out for one that adapts; lower --lr; check the data"
            warn(
                f"iteration {state.iteration}: the last {self._in_a_row} steps were skipped, their {which} are not "
                f"finite: nothing is learnt. {fix}"
            )
