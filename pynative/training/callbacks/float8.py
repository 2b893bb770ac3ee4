"""The callback that keeps delayed scales of 8-bit operands in checkpoints."""

from typing import Any

from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.float8 import DelayedScales


class Float8Callback(RunCallback):
    """Has checkpoints keep the delayed scales (`--fp8-recipe delayed`) of 8-bit operands, and a resumed run go on with
    them."""

    def __init__(self) -> None:
        self._scales: DelayedScales | None = None
        self._kept: dict[str, Any] = {}

    def on_train_begin(self, state: TrainingState) -> None:
        self._scales = state.step_cell.float8_scales
        self._scales.load_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scales is None else self._scales.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state
        if self._scales is not None:
            self._scales.load_state_dict(state)
