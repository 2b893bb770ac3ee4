"""Options of 16-bit training: the type, and the loss scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallel_core.config.base import Config, Unknown, judge, option
from parallel_core.findings import Finding
from parallel_core.numerics.loss_scale import (
    AdaptiveLossScaler,
    ConstantLossScaler,
    DeepSpeedLossScaler,
    DynamicLossScaler,
    LossScaler,
)

_SMALLEST, _LARGEST = 2.0**-126, 2.0**127
"""The smallest and the largest power of two among float32's normal numbers."""


@dataclass(kw_only=True)
class PrecisionConfig(Config):
    """Options of the type that the network computes in, and of the loss scale with its rule."""

    bf16: bool = option("--bf16", False)
    """Compute in bfloat16 with float32 master weights."""
    fp16: bool = option("--fp16", False)
    """Compute in float16 with float32 master weights and a loss scale."""
    qat_scheme: str | None = option("--qat-scheme", None, choices=("w4a16-mxfp4", "w4a16-mxfp4-moe-only"))
    """Quantisation-aware training: weights of column- and row-parallel linears and of experts, or of experts alone, are
    rounded to MXFP4 where they are multiplied, and their gradients pass as if they were not."""
    loss_scale: float | None = option("--loss-scale", None, at_least=0)
    """Fixed loss scale; none or 0: with --fp16 it adapts, with --bf16 there is none."""
    loss_scaler: str = option("--loss-scaler", None, choices=("dynamic", "deepspeed", "adaptive"))
    """The rule by which a loss scale adapts: as Megatron's (the default), as DeepSpeed's (with --consecutive-hysteresis
    the default), or with a window that adapts too."""
    loss_scale_value: float = option("--initial-loss-scale", 2.0**32, above=0)
    """First value of an adapting loss scale."""
    loss_scale_window: float = option("--loss-scale-window", None, above=0)
    """Steps without an overflow after which the scale grows, 1000 if not given; of the adaptive loss scaler the first
    such number, --min-scale-window if not given."""
    max_loss_scale_window: int = option("--max-scale-window", 1000, at_least=1)
    """Largest window of the adaptive loss scaler, in steps."""
    min_loss_scale_window: int = option("--min-scale-window", 20, at_least=1)
    """Smallest window of the adaptive loss scaler, in steps, but for 1 after three falls of the scale in a row."""
    loss_scale_factor: float = option("--loss-scale-factor", 2.0, above=1, at_most=_LARGEST)
    """Factor by which the scale grows, and shrinks on overflow; of DeepSpeed's rule it is 2."""
    consecutive_hysteresis: bool = option("--consecutive-hysteresis", False)
    """Restore, with every clean step, the overflows that are let through before the scale shrinks (DeepSpeed's)."""
    loss_scale_hysteresis: int = option("--hysteresis", 2, at_least=1)
    """Overflows until the scale shrinks, counted since it last grew."""
    min_loss_scale: float = option("--min-loss-scale", 1.0, above=0)
    """Megatron's and DeepSpeed's rules do not let the scale fall below this; of the adaptive loss scaler it is 1."""

    def derive(self) -> None:
        if not isinstance(self.loss_scale, Unknown) and self.loss_scale == 0:
            self.loss_scale = None
        self.fill("loss_scaler", lambda: "deepspeed" if self.consecutive_hysteresis else "dynamic")
        self.fill(
            "loss_scale_window", lambda: float(self.min_loss_scale_window if self.loss_scaler == "adaptive" else 1000)
        )

    def make_loss_scaler(self) -> LossScaler | None:
        """A new loss scaler by these options; None: gradients are not scaled."""
        if not (self.fp16 or self.bf16):
            return None
        if self.loss_scale is not None:
            return ConstantLossScaler(self.loss_scale)
        return self._adapting_loss_scaler() if self.fp16 else None

    def _adapting_loss_scaler(self) -> LossScaler:
        scale, window = self.loss_scale_value, int(self.loss_scale_window)
        if self.loss_scaler == "adaptive":
            windows = window, self.max_loss_scale_window, self.min_loss_scale_window
            return AdaptiveLossScaler(scale, self.loss_scale_factor, *windows)
        common: dict[str, Any] = {"scale": scale, "min_scale": self.min_loss_scale, "window": window}
        common["hysteresis"] = self.loss_scale_hysteresis
        if self.loss_scaler == "deepspeed":
            return DeepSpeedLossScaler(consecutive_hysteresis=self.consecutive_hysteresis, **common)
        return DynamicLossScaler(factor=self.loss_scale_factor, **common)

    def rules(self) -> Iterator[Finding]:
        """The findings of the section's rules, each rule judged by itself, so that a value that one of them cannot
        judge does not hide what the others find."""
        return judge(type(self)._RULES, self)

    def _one_type(self) -> Iterator[Finding]:
        if self.bf16 and self.fp16:
            yield self.clashes("fp16", "--bf16: only one of the two can be the compute type", "remove one")

    def _scales_are_normal(self) -> Iterator[Finding]:
        """Findings about loss scales that float32, in which losses and gradients are multiplied, does not hold as
        normal numbers."""
        for name in ("loss_scale", "loss_scale_value", "min_loss_scale"):
            scale = getattr(self, name)
            if not (scale is None or isinstance(scale, Unknown) or _SMALLEST <= scale <= _LARGEST):
                rule = "must be between 2^-126 and 2^127, as float32's numbers are"
                yield self.breaks(name, rule, "change it", value=float(scale))

    def _begins_above_the_smallest(self) -> Iterator[Finding]:
        if self.loss_scale_value < self.min_loss_scale:
            rule = f"must not be less than --min-loss-scale {self.min_loss_scale:g}"
            yield self.breaks("loss_scale_value", rule, "raise it")

    def _window_is_whole(self) -> Iterator[Finding]:
        if self.loss_scale_window % 1 != 0:
            yield self.breaks("loss_scale_window", "must be a whole number: it counts steps", "round it")

    def _windows_are_in_order(self) -> Iterator[Finding]:
        if self.loss_scaler == "adaptive" and self.max_loss_scale_window <= self.min_loss_scale_window:
            rule = f"must be above --min-scale-window {self.min_loss_scale_window}"
            yield self.breaks("max_loss_scale_window", rule, "raise it")

    def _hysteresis_is_deepspeeds(self) -> Iterator[Finding]:
        if self.consecutive_hysteresis and self.loss_scaler != "deepspeed":
            yield self.breaks("consecutive_hysteresis", f"--loss-scaler {self.loss_scaler} has none", "remove it")

    _RULES = (
        *(_one_type, _scales_are_normal, _begins_above_the_smallest),
        *(_window_is_whole, _windows_are_in_order, _hysteresis_is_deepspeeds),
    )
