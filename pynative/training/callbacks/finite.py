"""Stop a run whose loss or gradients are no numbers any more."""

from pynative.training.callbacks.base import Callback, TrainingState


class FiniteCallback(Callback):
    """Raise on the first step that is not finite; its update was not made. A loss scaler lives on such steps."""

    reads_parameters = False

    def on_step_end(self, state: TrainingState) -> None:
        result = state.result
        if not result.is_finite and state.step_cell.loss_scaler is None:
            raise FloatingPointError(
                f"iteration {state.iteration}: loss {result.loss}, gradient norm {result.gradient_norm}: not finite. "
                f"Lower --lr or --clip-grad, check the data, or train on with --no-check-for-nan-in-loss-and-grad, "
                f"which skips such updates"
            )
