"""Keys of the earlier system's training step (`runner_wrapper`), as data: gradients' clipping, the loss's scale."""

from __future__ import annotations

from typing import Any

from mapping.readers.meaning import Entries, Meaning, Values, to, words


def _of_runner(entries: Entries, name: str, otherwise: Any) -> Any:
    keys = (f"runner_wrapper.{name}", name)
    return next((entries[key] for key in keys if entries.get(key) is not None), otherwise)


def use_clip_grad(value: Any, entries: Entries) -> Values:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return {"clip_grad": _of_runner(entries, "max_grad_norm", 1.0) if value else 0.0}


def max_grad_norm(value: Any, entries: Entries) -> Values | str:
    is_on = _of_runner(entries, "use_clip_grad", False)
    return {"clip_grad": value} if is_on else "gradients are not clipped: use_clip_grad is not true"


_SCALE, _FIXED_SCALE = "runner_wrapper.scale_sense", "FixedLossScaleUpdateCell"


def fixed_scale(value: Any, entries: Entries) -> Values:
    """The scale stands beside it."""
    if not entries.get(f"{_SCALE}.loss_scale_value"):
        raise ValueError("needs a loss_scale_value above 0")
    return {"loss_scale": entries[f"{_SCALE}.loss_scale_value"]}


def loss_scale_value(value: Any, entries: Entries) -> Values | str:
    """The scale that never changes, or the one to begin with."""
    return {"loss_scale" if entries.get(f"{_SCALE}.type") == _FIXED_SCALE else "loss_scale_value": value}


CLIPPING: dict[str, Meaning] = {"use_clip_grad": use_clip_grad, "max_grad_norm": max_grad_norm}
BY_DEFAULT: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("runner_wrapper.", "type", "max_grad_norm"), ("runner_wrapper.use_clip_grad", False))
}
"""How keys begin -> a key and its value, if no key of that name is there."""
RUNNER: dict[str, Meaning] = {
    "type": words({"MFTrainOneStepCell": "there is one training step; it clips gradients if use_clip_grad is true"}),
    "local_norm": to("log_local_norm"),
    **CLIPPING,
    "scale_sense.type": words(
        {
            "AdaptiveLossScaleUpdateCell": {"loss_scaler": "adaptive"},
            "DynamicLossScaleUpdateCell": {"loss_scaler": "dynamic", "loss_scale_hysteresis": 1},
            _FIXED_SCALE: fixed_scale,
        }
    ),
    "scale_sense.loss_scale_value": loss_scale_value,
    "scale_sense.scale_factor": to("loss_scale_factor"),
    "scale_sense.scale_window": to("loss_scale_window"),
    "scale_sense.max_scale_window": to("max_loss_scale_window"),
    "scale_sense.min_scale_window": to("min_loss_scale_window"),
}
