"""How weights change: the optimizer, its learning rate and its weight decay over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parallel_core.config.base import Config, concern, option, section
from parallel_core.config.muon import MuonConfig
from parallel_core.config.pma import PmaConfig
from parallel_core.findings import Finding

RULES = ("adam", "sgd", "muon")
"""Update rules."""

_ADAMW = {"optimizer_type": "adam"}
_OTHER_NAMES: dict[str, dict[str, Any]] = {
    "AdamW": _ADAMW,
    "mint.AdamW": _ADAMW,
    "SpeedAdamW": _ADAMW,
    "AdamWZeRO": _ADAMW,
    "Adam": {**_ADAMW, "decoupled_weight_decay": False},
    "AdamWeightDecay": {**_ADAMW, "adam_bias_correction": False},
    "PmaAdamW": _ADAMW,
    "PmAdamW": _ADAMW,
    "SGD": {"optimizer_type": "sgd"},
    "Muon": {"optimizer_type": "muon"},
    "dist_muon": {"optimizer_type": "muon"},
}
"""MindSpore's and the earlier system's names, and Megatron's of a Muon whose states are shared out over ranks."""

STATE_TYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""--exp-avg-dtype and --exp-avg-sq-dtype -> the name of the type."""


@section
class OptimizerConfig(Config):
    """Optimizer and schedule; a schedule is counted in iterations, or in samples when training is."""

    optimizer_type: str = option("--optimizer", "adam", choices=(*RULES, *_OTHER_NAMES))
    """The update rule."""
    learning_rate: float | None = option("--lr", None, at_least=0)
    """Highest learning rate, reached after the warm-up. A training needs one."""
    decoupled_lr: float | None = option("--decoupled-lr", None, at_least=0)
    """Another highest learning rate for embedding and output layer."""
    decoupled_min_lr: float | None = option("--decoupled-min-lr", None, at_least=0)
    """Another lowest learning rate for them."""
    min_lr: float = option("--min-lr", 0.0, at_least=0)
    """Lowest learning rate, reached at the end of the decay."""
    betas: tuple[float, ...] = option("--adam-beta1", (0.9, 0.999))
    """Decay rates of Adam's two moments."""
    eps: float = option("--adam-eps", 1e-8, above=0)
    """Added to the root of Adam's second moment."""
    adam_bias_correction: bool = option("--no-adam-bias-correction", True)
    """Divide Adam's moments, which begin at zero, by 1 - beta^step; without it epsilon weighs less at first."""
    use_precision_aware_optimizer: bool = option("--use-precision-aware-optimizer", False)
    """Let the optimizer's states have types of their own."""
    exp_avg_dtype: str = option("--exp-avg-dtype", "fp32", choices=tuple(STATE_TYPES))
    """Type in which Adam's first moment is kept."""
    exp_avg_sq_dtype: str = option("--exp-avg-sq-dtype", "fp32", choices=tuple(STATE_TYPES))
    """Type in which Adam's second moment is kept."""
    sgd_momentum: float = option("--sgd-momentum", 0.9, at_least=0, below=1)
    """Momentum of plain gradient descent."""
    decoupled_weight_decay: bool = option("--no-decoupled-weight-decay", True)
    """Shrink weights directly instead of adding to the gradient."""
    weight_decay: float = option("--weight-decay", 0.01, at_least=0)
    """Weight decay, for matrices only."""
    apply_wd_to_qk_layernorm: bool = option("--apply-wd-to-qk-layernorm", False)
    """Also for the norms of queries and keys."""
    no_weight_decay_params: list[str] | None = option("--no-weight-decay-params", None)
    """Ends of the names of the parameters without weight decay; none: vectors and biases are."""
    start_weight_decay: float = option("--start-weight-decay", None, at_least=0)
    """Weight decay at the first iteration; `weight_decay` if not given."""
    end_weight_decay: float = option("--end-weight-decay", None, at_least=0)
    """Weight decay at the last iteration; `weight_decay` if not given."""
    weight_decay_incr_style: str = option(
        "--weight-decay-incr-style", "constant", choices=("constant", "linear", "cosine")
    )
    """How weight decay goes from its start to its end."""
    clip_grad: float = option("--clip-grad", 1.0, at_least=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    clip_grad_value: float | None = option("--clip-grad-value", None, above=0)
    """Entries of gradients are brought between minus this and this; none leaves them alone."""

    lr_decay_style: str = option(
        "--lr-decay-style", "linear", choices=("constant", "linear", "cosine", "inverse-square-root", "WSD")
    )
    """How the learning rate falls."""
    lr_decay_iters: int | None = option("--lr-decay-iters", None, at_least=1)
    """Iterations until `min_lr`; those of the training if not given."""
    lr_decay_samples: int | None = option("--lr-decay-samples", None, at_least=1)
    """Samples until `min_lr`; those of the training if not given."""
    lr_warmup_iters: int = option("--lr-warmup-iters", 0, at_least=0)
    """Iterations over which the learning rate rises."""
    lr_warmup_samples: int = option("--lr-warmup-samples", 0, at_least=0)
    """Samples over which the learning rate rises."""
    lr_warmup_fraction: float | None = option("--lr-warmup-fraction", None, at_least=0, below=1)
    """Share of the decay over which the learning rate rises."""
    lr_warmup_init: float = option("--lr-warmup-init", 0.0, at_least=0)
    """Learning rate at the first iteration of the warm-up."""
    lr_warmup_style: str = option("--lr-warmup-style", "linear", choices=("linear", "log"))
    """How the learning rate rises: evenly, or by the logarithm of the updates, as DeepSpeed's WarmupLR does."""
    lr_schedule_delay: int = option("--lr-schedule-delay", 0, at_least=0)
    """Updates with the first learning rate before its schedule begins; DeepSpeed's schedulers have one."""
    lr_wsd_decay_style: str = option(
        "--lr-wsd-decay-style", "exponential", choices=("exponential", "linear", "cosine", "minus_sqrt")
    )
    """How the last part of a WSD schedule falls."""
    lr_wsd_decay_iters: int | None = option("--lr-wsd-decay-iters", None, at_least=1)
    """Iterations of the last part of a WSD schedule."""
    lr_wsd_decay_samples: int | None = option("--lr-wsd-decay-samples", None, at_least=1)
    """Samples of the last part of a WSD schedule."""
    override_opt_param_scheduler: bool = option("--override-opt_param-scheduler", False)
    """On resuming, take the schedule from the flags."""
    use_checkpoint_opt_param_scheduler: bool = option("--use-checkpoint-opt_param-scheduler", False)
    """On resuming, take the schedule from the checkpoint."""
    overlap_param_gather: bool = option("--overlap-param-gather", False)
    """Gather the distributed optimizer's weights while the forward pass runs."""

    muon: MuonConfig = concern(MuonConfig)
    """The rule muon."""
    pma: PmaConfig = concern(PmaConfig)
    """Averages of weights."""

    def derive(self) -> None:
        self.fill("start_weight_decay", lambda: self.weight_decay)
        self.fill("end_weight_decay", lambda: self.weight_decay)
        if self.optimizer_type in ("PmaAdamW", "PmAdamW") and self.pma.pma_fused_algo is None:
            self.pma.pma_fused_algo = "ema"
        for name, value in _OTHER_NAMES.get(self.optimizer_type, {}).items():
            setattr(self, name, value)

    def rules(self) -> Iterator[Finding]:
        for number, beta in enumerate(self.betas, start=1):
            if not 0 <= beta < 1:
                yield Finding(f"--adam-beta{number}", beta, "must be at least 0 and below 1", "change it")
        if self.apply_wd_to_qk_layernorm and self.no_weight_decay_params is not None:
            rule = "--no-weight-decay-params alone says which parameters are not decayed"
            yield Finding("--apply-wd-to-qk-layernorm", None, rule, "leave one of them out")
