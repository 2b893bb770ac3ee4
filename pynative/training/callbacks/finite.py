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
    """Warns of a run that stands still, after every 10 (`interval`) steps that were skipped in a row at the same loss
    scale and for the same reason: their loss or gradients are not finite, or they are spikes (--loss-spike-action).

    A constant scale (--loss-scale) never shrinks, as in Megatron; a dynamic one not below --min-loss-scale. Without a
    scaler steps that are not finite are skipped with --no-check-for-nan-in-loss-and-grad.
    """

    interval = 10
    """The number of steps, skipped one after another at the same scale and for the same reason, after which it warns,
    and warns again."""

    def __init__(self) -> None:
        self._in_a_row, self._scale, self._is_spike = 0, 0.0, False

    def on_step_end(self, state: TrainingState) -> None:
        result = state.result
        same = result.skipped and (result.loss_scale, bool(result.spike)) == (self._scale, self._is_spike)
        self._in_a_row = self._in_a_row + 1 if same else int(result.skipped)
        self._scale, self._is_spike = result.loss_scale, bool(result.spike)
        if self._in_a_row and self._in_a_row % self.interval == 0:
            reason, fix = self._reason(has_scaler=state.step_cell.loss_scaler is not None)
            warn(
                f"iteration {state.iteration}: the last {self._in_a_row} steps were skipped, their {reason}: nothing "
                f"is learnt. {fix}"
            )

    def _reason(self, *, has_scaler: bool) -> tuple[str, str]:
        """(What the last steps' losses or gradients are, what the user can do)."""
        if self._is_spike:
            fix = "Lower --lr, check the data, or make such updates by --loss-spike-action report"
            return "losses or gradient norms are spikes", fix
        if has_scaler:
            fix = "Give a smaller --loss-scale or leave it out for one that adapts; lower --lr; check the data"
            return f"gradients, at a loss scale of {self._scale:g}, which stays, are not finite", fix
        return "losses or gradients are not finite", "Lower --lr or --clip-grad, check the data"
