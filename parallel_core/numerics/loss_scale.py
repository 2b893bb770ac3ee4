"""Loss scalers: the factor that keeps 16-bit gradients in range, as state machines without tensors.

The loss is multiplied by `scale` before the backward pass and the gradients are divided by it. A step in which a
gradient of any rank is not finite has overflowed: it is skipped, and `update` is told so. The state is plain numbers
and the scaler's kind, which a checkpoint saves.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar


class LossScaler(ABC):
    """The base class of loss scalers."""

    scale: float
    """The factor of the next step's loss."""
    kind: ClassVar[str]
    """Name of the kind in a checkpoint."""
    state_names: ClassVar[tuple[str, ...]] = ("scale",)
    """Names of the fields that a checkpoint saves; the others are settings."""

    @abstractmethod
    def update(self, overflow: bool) -> None:
        """Advance by one step; overflow: whether any rank's gradient was not finite."""

    def state_dict(self) -> dict[str, Any]:
        """The kind and the state, for a checkpoint."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in self.state_names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint; from another kind of scaler's only the scale is taken. Settings
        stay. Raises KeyError for a state without its kind or without a number that is to be taken."""
        names = self.state_names if state["kind"] == self.kind else ("scale",)
        for name in names:
            setattr(self, name, state[name])


@dataclass
class ConstantLossScaler(LossScaler):
    """A fixed scale (--loss-scale)."""

    scale: float = 1.0
    kind = "constant"

    def update(self, overflow: bool) -> None:
        """Do nothing: the scale is fixed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the scale is a setting."""


@dataclass(kw_only=True)
class DynamicLossScaler(LossScaler):
    """Megatron's DynamicGradScaler: an overflow beyond the first `hysteresis` - 1 since the scale last grew divides the
    scale by `factor` and leaves at least `min_scale`, and every `window` steps in a row without an overflow multiply
    the scale by `factor`.

    Clean steps alone do not restore the hysteresis: once it is used up, each further overflow shrinks the scale until
    the scale grows. growth_tracker, hysteresis_tracker: the state.
    """

    scale: float = 2.0**32
    min_scale: float = 1.0
    factor: float = 2.0
    window: int = 1000
    hysteresis: int = 2
    growth_tracker: int = 0
    """Clean steps since the last overflow or growth."""
    hysteresis_tracker: int | None = None
    """Overflows that are left, the last of which shrinks the scale; 0 or less once they are used up. None, when made:
    `hysteresis`."""
    kind = "dynamic"
    state_names = ("scale", "growth_tracker", "hysteresis_tracker")

    def __post_init__(self) -> None:
        if self.hysteresis_tracker is None:
            self.hysteresis_tracker = self.hysteresis

    def update(self, overflow: bool) -> None:
        """Advance by one step: an overflow uses up hysteresis and, where none is left, divides the scale and leaves at
        least `min_scale`; the last of `window` clean steps in a row lets it grow. overflow: whether any rank's gradient
        was not finite."""
        if overflow:
            self.growth_tracker = 0
            self.hysteresis_tracker = (self.hysteresis_tracker or 0) - 1
            if self.hysteresis_tracker <= 0:
                self.scale = max(self.scale / self.factor, self.min_scale)
            return
        self.growth_tracker += 1
        if self.growth_tracker >= self.window:
            self.growth_tracker = 0
            self.hysteresis_tracker = self.hysteresis
            self.scale *= self.factor


@dataclass(kw_only=True)
class DeepSpeedLossScaler(LossScaler):
    """DeepSpeed's DynamicLossScaler: the scale doubles in the clean steps number `window` + 1, 2 `window` + 1, ...
    since the last overflow or the beginning. An overflow halves it and leaves at least `min_scale`, but for the first
    `hysteresis` - 1 overflows (hysteresis: at least 1) since the beginning or the last clean step that restored the
    hysteresis: one that doubles the scale, with `consecutive_hysteresis` any. iteration, last_overflow,
    current_hysteresis: the state."""

    scale: float = 2.0**16
    min_scale: float = 1.0
    window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    """Whether every clean step restores the hysteresis; False: growth alone does."""
    iteration: int = 0
    last_overflow: int = -1
    current_hysteresis: int | None = None
    kind = "deepspeed"
    state_names = ("scale", "iteration", "last_overflow", "current_hysteresis")

    def __post_init__(self) -> None:
        if self.current_hysteresis is None:
            self.current_hysteresis = self.hysteresis

    def update(self, overflow: bool) -> None:
        """Advance by one step: an overflow uses up hysteresis, or shrinks the scale; clean steps let it grow, as the
        class says. overflow: whether any rank's gradient was not finite."""
        if overflow:
            self._shrink()
        else:
            self._grow()
        self.iteration += 1

    def _shrink(self) -> None:
        if 1 in (self.hysteresis, self.current_hysteresis):
            self.scale = max(self.scale / 2, self.min_scale)
        else:
            self.current_hysteresis = (self.current_hysteresis or 0) - 1
        self.last_overflow = self.iteration

    def _grow(self) -> None:
        if self.consecutive_hysteresis:
            self.current_hysteresis = self.hysteresis
        clean = self.iteration - self.last_overflow - 1
        if clean > 0 and clean % self.window == 0:
            self.current_hysteresis = self.hysteresis
            self.scale *= 2


_HIDDEN = -1
"""The `level` of an adaptive scaler after three falls, below that of its shortest window, with a window of 1 step: the
scale is found again quickly after it collapsed."""


def windows(max_window: int, min_window: int) -> list[int]:
    """The windows of an adaptive scaler, shortest first: `min_window`, and the numbers above it of a row that begins
    with `max_window`. There a number above 100 is followed by its half, rounded down to hundreds; 100 by 50; a smaller
    one by itself less `min_window` / 2. Fractions are rounded down at the end. `min_window` must be above 0. (1000, 20)
    gives 20 30 40 50 100 200 500 1000, (150, 20) gives 20 150."""
    found, window = {min_window}, float(max_window)
    while window > min_window:
        found.add(math.floor(window))
        if window > 100:
            window = math.floor(window / 2 / 100) * 100
        else:
            window = 50 if window == 100 else window - min_window / 2
    return sorted(length for length in found if length >= min_window)


@dataclass
class AdaptiveLossScaler(LossScaler):
    """A dynamic scale whose window adapts: after three rises of the scale the window is the next longer of `windows`;
    after three falls without a rise between them it is 1 step, unless it was the shortest already. A rise multiplies
    the scale by `factor`, a fall divides it and leaves at least 1 (a scale below 1 stays as it is); every overflow
    counts as a fall. scale_window: the first window, in steps; iteration, last_change, rises, falls, level: the state.

    Named AdaptiveLossScaleUpdateCell in MindFormers. Raises ValueError unless max_window > min_window > 0. If no level
    is given and scale_window is not among the windows, it warns, and begins with the shortest.
    """

    scale: float
    factor: float
    scale_window: int
    """The window to begin with, in steps: one of `windows(max_window, min_window)`, else the shortest is taken."""
    max_window: int = 1000
    min_window: int = 20
    iteration: int = 1
    last_change: int = 0
    rises: int = 0
    falls: int = 0
    level: int | None = None
    """Index in `windows(max_window, min_window)`, or _HIDDEN. None, when made: that of `scale_window`."""
    kind = "adaptive"
    state_names = ("scale", "iteration", "last_change", "rises", "falls", "level")

    def __post_init__(self) -> None:
        if not self.max_window > self.min_window > 0:
            raise ValueError(
                f"--max-scale-window {self.max_window}: must be above --min-scale-window {self.min_window}, and that "
                "above 0; change them"
            )
        known = windows(self.max_window, self.min_window)
        if self.level is None:
            self.level = known.index(self.scale_window) if self.scale_window in known else 0
            if self.scale_window not in known:
                message = f"scale window {self.scale_window} is not among {known}: starting with {known[0]}"
                warnings.warn(message, stacklevel=2)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint; from another kind of scaler's only the scale is taken. Where the
        settings now give no window with the state's `level`, the longest is taken."""
        super().load_state_dict(state)
        self.level = min(self.level or 0, len(windows(self.max_window, self.min_window)) - 1)

    @property
    def window(self) -> int:
        """The number of steps from a rise of the scale, an overflow or the beginning to the next rise, if none of them
        overflows."""
        return 1 if self.level == _HIDDEN else windows(self.max_window, self.min_window)[self.level or 0]

    def update(self, overflow: bool) -> None:
        """Advance by one step: an overflow divides the scale and leaves at least 1 (a scale below 1 stays as it is);
        the last of `window` steps since a rise, an overflow or the beginning lets it grow. overflow: whether any rank's
        gradient was not finite."""
        is_due = self.window <= self.iteration - self.last_change
        if overflow or is_due:
            self.last_change = self.iteration
        self.iteration += 1
        if overflow:
            self._fall()
        elif is_due:
            self._rise()

    def _rise(self) -> None:
        self.scale *= self.factor
        self.rises, self.falls = (self.rises + 1) % 4, 0
        self._lengthen()

    def _fall(self) -> None:
        self.scale = min(self.scale, max(self.scale / self.factor, 1.0))
        self._lengthen()
        self.falls = (self.falls + 1) % 4
        if self.falls == 3 and self.level not in (_HIDDEN, 0):
            self.level = _HIDDEN
            self.rises = self.falls = 0

    def _lengthen(self) -> None:
        last = len(windows(self.max_window, self.min_window)) - 1
        if self.rises == 3 and self.level != last:
            self.level = (self.level or 0) + 1 if self.level != _HIDDEN else 0
            self.rises = 0
