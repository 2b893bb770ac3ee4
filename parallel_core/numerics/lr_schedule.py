"""Learning rate and weight decay as functions of the samples of the updates so far; Megatron's
`OptimizerParamScheduler`.

Training advances it by the global batch after an update, not at all on a skipped one; so with a batch of constant size
iteration i, from 0, uses the value at i x global batch samples if none was skipped, and with a warm-up from 0 the first
update has learning rate 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

_DECAY_STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")


class Rates(NamedTuple):
    """Learning rates and weight decay that an update takes."""

    learning_rate: float
    weight_decay: float
    decoupled_lr: float
    """The learning rate of embedding and output layer: their own (--decoupled-lr), or the common one."""


@dataclass(kw_only=True)
class OptimizerParamScheduler:
    """The learning rate (*lr*) and weight decay (*wd*) as a function of `num_steps`, the samples of the updates so far.
    All fields *_steps count samples. decoupled_*: rates of embedding and output layer; None: the common ones. Raises
    ValueError for an unknown decay style, a warm-up that is not shorter than the decay (of another style than
    constant), and for WSD without `wsd_decay_steps`."""

    max_lr: float
    min_lr: float = 0.0
    init_lr: float = 0.0
    lr_warmup_steps: float = 0
    lr_warmup_style: str = "linear"
    lr_warmup_unit: int = 1
    """Samples of one update; a logarithmic warm-up counts updates."""
    lr_delay_steps: int = 0
    """Samples before the learning rate's schedule begins, in which it is that of the schedule's beginning."""
    lr_decay_steps: int
    lr_decay_style: str = "linear"
    start_wd: float
    end_wd: float
    wd_incr_steps: int
    wd_incr_style: str = "constant"
    wsd_decay_steps: int | None = None
    lr_wsd_decay_style: str = "exponential"
    decoupled_lr: float | None = None
    """The largest learning rate of embedding and output layer; None: max_lr."""
    decoupled_min_lr: float | None = None
    """The smallest learning rate of embedding and output layer; None: min_lr."""
    num_steps: int = 0

    def __post_init__(self) -> None:
        if self.lr_decay_style not in _DECAY_STYLES:
            raise ValueError(f"--lr-decay-style {self.lr_decay_style}: one of {', '.join(_DECAY_STYLES)}")
        if self.lr_warmup_steps >= self.lr_decay_steps and self.lr_decay_style != "constant":
            raise ValueError(
                f"--lr-warmup-* gives {self.lr_warmup_steps} samples, which must be fewer than the "
                f"{self.lr_decay_steps} of --lr-decay-*: shorten the warm-up or lengthen the decay"
            )
        if self.lr_decay_style == "WSD" and self.wsd_decay_steps is None:
            raise ValueError("--lr-decay-style WSD: needs --lr-wsd-decay-iters or --lr-wsd-decay-samples")

    def step(self, increment: int) -> None:
        """Advance by `increment` samples."""
        self.num_steps += increment

    @property
    def _lr_steps(self) -> int:
        """The number of samples since the learning rate's schedule began."""
        return max(0, self.num_steps - self.lr_delay_steps)

    def get_lr(self, max_lr: float | None = None, min_lr: float | None = None) -> float:
        """The learning rate at the present number of samples. max_lr, min_lr: the rates from and to which that of a
        parameter group decays, if they are its own; None: the schedule's. A warm-up begins at `init_lr`."""
        top = self.max_lr if max_lr is None else max_lr
        floor = self.min_lr if min_lr is None else min_lr
        if self.lr_warmup_steps > 0 and self._lr_steps <= self.lr_warmup_steps:
            return self.init_lr + (top - self.init_lr) * self._warmup_share()
        if self.lr_decay_style == "constant":
            return top
        if self._lr_steps > self.lr_decay_steps:
            return floor
        if self.lr_decay_style == "inverse-square-root":
            warm_up = max(self.lr_warmup_steps, 1)
            return max(floor, top * math.sqrt(warm_up) / math.sqrt(max(self._lr_steps, 1)))
        return floor + self._decay_coefficient() * (top - floor)

    def _warmup_share(self) -> float:
        """The share of the warm-up that is done, 0 - 1: linear, samples so far / samples of the warm-up; logarithmic,
        as DeepSpeed's WarmupLR, log(updates so far + 1) / log(updates of the warm-up)."""
        if self.lr_warmup_style == "linear":
            return self._lr_steps / self.lr_warmup_steps
        updates, all_updates = self._lr_steps / self.lr_warmup_unit, self.lr_warmup_steps / self.lr_warmup_unit
        return min(1.0, math.log(updates + 1) / math.log(max(2.0, all_updates)))

    def _decay_coefficient(self) -> float:
        ratio = (self._lr_steps - self.lr_warmup_steps) / (self.lr_decay_steps - self.lr_warmup_steps)
        if self.lr_decay_style == "linear":
            return 1.0 - ratio
        if self.lr_decay_style == "cosine":
            return 0.5 * (math.cos(math.pi * ratio) + 1.0)
        return self._anneal_coefficient()

    def _anneal_coefficient(self) -> float:
        """The share of the range from min_lr to max_lr for warm-up, stable, decay (Hu et al., MiniCPM, 2024): 1 until
        the last `wsd_decay_steps` samples, then falling to 0."""
        assert self.wsd_decay_steps is not None
        into = self._lr_steps - (self.lr_decay_steps - self.wsd_decay_steps)
        if into <= 0:
            return 1.0
        ratio = into / self.wsd_decay_steps
        falls: dict[str, Callable[[], float]] = {
            "linear": lambda: 1.0 - ratio,
            "cosine": lambda: 0.5 * (math.cos(math.pi * ratio) + 1.0),
            "exponential": lambda: 2.0 * 0.5**ratio - 1.0,
            "minus_sqrt": lambda: 1.0 - math.sqrt(ratio),
        }
        return falls[self.lr_wsd_decay_style]()

    def get_wd(self) -> float:
        """The weight decay at the present number of samples."""
        if self.num_steps > self.wd_incr_steps:
            return self.end_wd
        if self.wd_incr_style == "constant":
            return self.end_wd
        ratio = self.num_steps / self.wd_incr_steps
        rise = {"linear": ratio, "cosine": 0.5 * (math.cos(math.pi * (1.0 - ratio)) + 1.0)}[self.wd_incr_style]
        return self.start_wd + rise * (self.end_wd - self.start_wd)

    def rates(self) -> Rates:
        """The rates at the present number of samples, which the next update takes."""
        return Rates(self.get_lr(), self.get_wd(), self.get_lr(self.decoupled_lr, self.decoupled_min_lr))

    def state_dict(self) -> dict[str, float | int | str | None]:
        """All fields by name, those of the schedule and the count of samples, for a checkpoint."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any], *, override: bool = False) -> None:
        """Take fields of this object from a checkpoint's `state_dict`: all that it has there, or with `override`
        (--override-opt-param-scheduler) the count of samples alone, so that this object's schedule stays.
        """
        known = {name: value for name, value in state.items() if name in vars(self)}
        vars(self).update({"num_steps": state["num_steps"]} if override else known)
