"""Loss scalers under MindFormers' names and arguments, for scripts that make them themselves; pass one to
`TrainOneStepCell`."""

from typing import Any

from parallel_core.config.base import gather_findings
from parallel_core.config.precision import PrecisionConfig
from parallel_core.findings import ConfigError
from parallel_core.numerics.loss_scale import AdaptiveLossScaler, ConstantLossScaler, DynamicLossScaler

_ARGUMENTS = {
    "--initial-loss-scale": "loss_scale_value",
    "--loss-scale-factor": "scale_factor",
    "--loss-scale-window": "scale_window",
    "--max-scale-window": "max_scale_window",
    "--min-scale-window": "min_scale_window",
    "--min-loss-scale": "the smallest scale",
}


def _check(**settings: Any) -> None:
    """Raise `ConfigError` with everything that is wrong with the settings of a scaler, by the arguments' names; the
    limits are those of the flags."""
    with gather_findings() as found:
        PrecisionConfig(fp16=True, **settings)
    renamed = [finding._replace(flag=_ARGUMENTS.get(finding.flag, finding.flag)) for finding in found]
    for flag, argument in _ARGUMENTS.items():
        renamed = [finding._replace(rule=finding.rule.replace(flag, argument)) for finding in renamed]
    if renamed:
        raise ConfigError(renamed)


class AdaptiveLossScaleUpdateCell(AdaptiveLossScaler):
    """`AdaptiveLossScaler` with MindFormers' arguments. Raises ConfigError for values that the adaptive loss scaler's
    flags do not take."""

    def __init__(
        self,
        loss_scale_value: float,
        scale_factor: float,
        scale_window: int,
        max_scale_window: int = 1000,
        min_scale_window: int = 20,
    ) -> None:
        _check(
            loss_scaler="adaptive",
            loss_scale_value=loss_scale_value,
            loss_scale_factor=scale_factor,
            loss_scale_window=scale_window,
            max_loss_scale_window=max_scale_window,
            min_loss_scale_window=min_scale_window,
        )
        super().__init__(loss_scale_value, scale_factor, scale_window, max_scale_window, min_scale_window)


class DynamicLossScaleUpdateCell(DynamicLossScaler):
    """`DynamicLossScaler` with MindFormers' arguments: every overflow divides the scale, down to 1. Raises ConfigError
    for values that the loss scaler's flags do not take."""

    def __init__(self, loss_scale_value: float, scale_factor: float, scale_window: int) -> None:
        _check(loss_scale_value=loss_scale_value, loss_scale_factor=scale_factor, loss_scale_window=scale_window)
        super().__init__(scale=loss_scale_value, factor=scale_factor, window=scale_window, hysteresis=1)


class FixedLossScaleUpdateCell(ConstantLossScaler):
    """`ConstantLossScaler` with MindFormers' argument. Raises ConfigError unless the value is a number from 2^-126 to
    2^127."""

    def __init__(self, loss_scale_value: float) -> None:
        _check(loss_scale_value=loss_scale_value, min_loss_scale=2.0**-126)
        super().__init__(loss_scale_value)
