"""Loss scalers under the names and arguments of scripts that make them themselves; pass one to `TrainOneStepCell`."""

from parallel_core.loss_scale import AdaptiveLossScaler, ConstantLossScaler, DynamicLossScaler


class AdaptiveLossScaleUpdateCell(AdaptiveLossScaler):
    """`AdaptiveLossScaler`."""

    def __init__(
        self,
        loss_scale_value: float,
        scale_factor: float,
        scale_window: int,
        max_scale_window: int = 1000,
        min_scale_window: int = 20,
    ) -> None:
        super().__init__(loss_scale_value, scale_factor, scale_window, max_scale_window, min_scale_window)


class DynamicLossScaleUpdateCell(DynamicLossScaler):
    """`DynamicLossScaler` of which every overflow shrinks the scale, at most to 1."""

    def __init__(self, loss_scale_value: float, scale_factor: float, scale_window: int) -> None:
        super().__init__(scale=loss_scale_value, factor=scale_factor, window=scale_window, hysteresis=1)


class FixedLossScaleUpdateCell(ConstantLossScaler):
    """`ConstantLossScaler`."""

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__(loss_scale_value)
