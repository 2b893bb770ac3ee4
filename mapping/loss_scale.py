"""Loss-scale values beside the types that they are given with: where they act, do nothing, or are a mistake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from mapping.given import Given
from parallel_core.config import AllConfig
from parallel_core.config.base import Unjudged
from parallel_core.config.tree import path_of
from parallel_core.findings import Finding

_FIXED = path_of("loss_scale")
_ADAPTING = {
    path_of(name)
    for name in (
        "loss_scaler",
        "loss_scale_value",
        "loss_scale_window",
        "max_loss_scale_window",
        "min_loss_scale_window",
        "loss_scale_factor",
        "consecutive_hysteresis",
        "loss_scale_hysteresis",
        "precision.min_loss_scale",
    )
}
"""Fields of a scale that adapts."""
_DEFAULTS = {path_of("loss_scale_window"): 1000}
"""Megatron's, where the flag has none of its own here: typed out it asks for nothing."""
_ADAPTIVE_ALONE = dict.fromkeys(
    map(path_of, ("max_loss_scale_window", "min_loss_scale_window")), "no effect: needs --adaptive-loss-scale"
)
_BESIDE = {
    "dynamic": _ADAPTIVE_ALONE,
    "deepspeed": _ADAPTIVE_ALONE | {path_of("loss_scale_factor"): "no effect: DeepSpeed's scale doubles and halves"},
    "adaptive": dict.fromkeys(
        map(path_of, ("loss_scale_hysteresis", "precision.min_loss_scale")),
        "no effect: --adaptive-loss-scale shrinks the scale at every overflow, down to 1",
    ),
}
"""Loss scaler -> field -> why it does nothing there."""


def why_not(config: AllConfig) -> dict[str, str]:
    """Field -> why it does nothing, of the fields that do nothing; all act while the types are not known."""
    precision = config.training_config.precision
    with suppress(Unjudged):
        if not (precision.fp16 or precision.bf16):
            return dict.fromkeys([_FIXED, *_ADAPTING], "float32 gradients are not scaled")
        if precision.loss_scale is not None:
            return dict.fromkeys(_ADAPTING, "--loss-scale is fixed")
        if precision.bf16:
            return dict.fromkeys(_ADAPTING, "bfloat16 has float32's range; only a fixed --loss-scale acts with it")
        return _BESIDE.get(precision.loss_scaler, {})
    return {}


def out_of_place(typed: Sequence[Given], config: AllConfig) -> Iterator[Finding]:
    """Flags that ask for a loss scale in float32; files may hold what a part of theirs switches off."""
    if _FIXED in why_not(config):
        for entry in typed:
            asks_for_nothing = entry.value in (0, entry.row.default, _DEFAULTS.get(entry.target))
            if entry.target in {_FIXED, *_ADAPTING} and not asks_for_nothing:
                value = None if isinstance(entry.value, bool) else entry.value
                yield Finding(entry.name, value, "needs --fp16 or --bf16", f"add one or leave {entry.name} out")
