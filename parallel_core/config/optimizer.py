"""Options of the update: the optimizer, and its learning rate and weight decay over time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallel_core.config.base import Config, concern, option, section
from parallel_core.config.update_rules.adam import ADAM, AdamConfig
from parallel_core.config.update_rules.lion import LION, LionConfig
from parallel_core.config.update_rules.muon import MUON, MuonConfig
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.config.update_rules.sgd import SGD, SgdConfig
from parallel_core.findings import Finding

RULES = {rule.name: rule for rule in (ADAM, SGD, MUON, LION)}
"""Name -> update rule."""

BY_ANY_NAME = RULES | {name: rule for rule in RULES.values() for name in rule.other_names}
SHARING_NAMES = tuple(name for rule in RULES.values() for name in rule.sharing_names)
"""Names of --optimizer that ask for the distributed optimizer."""


@section
class OptimizerConfig(Config):
    """Options of the optimizer and its schedules, which are counted in iterations, or in samples when training is."""

    optimizer_type: str = option("--optimizer", "adam", choices=tuple(BY_ANY_NAME))
    """The optimizer; --optimizer muon updates matrices, and adam the rest."""
    learning_rate: float | None = option("--lr", None, at_least=0)
    """Highest learning rate, reached after the warm-up. A training needs one."""
    decoupled_lr: float | None = option("--decoupled-lr", None, at_least=0)
    """Another highest learning rate for embedding and output layer."""
    decoupled_min_lr: float | None = option("--decoupled-min-lr", None, at_least=0)
    """Another lowest learning rate for embedding and output layer."""
    width_multiplier: float = option("--mup-base-hidden-size", 1.0, above=0)
    """Hidden size over that of the model whose learning rates are given: mu-P (`use_mup`) divides the rate and Adam's
    epsilon of matrices between embedding and output layer by it, and multiplies SGD's rate of all others."""
    min_lr: float = option("--min-lr", 0.0, at_least=0)
    """Lowest learning rate, reached at the end of the decay."""
    weight_decay: float = option("--weight-decay", 0.01, at_least=0)
    """Weight decay, for matrices only."""
    apply_wd_to_qk_layernorm: bool = option("--apply-wd-to-qk-layernorm", False)
    """Let weight decay act also on the norms of queries and keys."""
    no_weight_decay_params: list[str] | None = option("--no-weight-decay-params", None)
    """Ends of the names of the parameters without weight decay, which then acts on all others; none: it acts on
    matrices alone."""
    start_weight_decay: float = option("--start-weight-decay", None, at_least=0)
    """Weight decay at the first iteration; `weight_decay` if not given."""
    end_weight_decay: float = option("--end-weight-decay", None, at_least=0)
    """Weight decay at the last iteration; `weight_decay` if not given."""
    weight_decay_incr_style: str = option(
        "--weight-decay-incr-style", "constant", choices=("constant", "linear", "cosine")
    )
    """Form of the growth of weight decay from its start to its end."""
    clip_grad: float = option("--clip-grad", 1.0, at_least=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    clip_grad_value: float | None = option("--clip-grad-value", None, above=0)
    """Bound of the magnitude of each entry of a gradient; none leaves them alone."""

    lr_decay_style: str = option(
        "--lr-decay-style", "linear", choices=("constant", "linear", "cosine", "inverse-square-root", "WSD")
    )
    """Form of the decay of the learning rate."""
    lr_decay_iters: int | None = option("--lr-decay-iters", None, at_least=1)
    """Iterations until the learning rate is `min_lr`; those of the training if not given."""
    lr_decay_samples: int | None = option("--lr-decay-samples", None, at_least=1)
    """Number of samples until the learning rate is `min_lr`; those of the training if not given."""
    lr_warmup_iters: int = option("--lr-warmup-iters", 0, at_least=0)
    """Iterations over which the learning rate rises."""
    lr_warmup_samples: int = option("--lr-warmup-samples", 0, at_least=0)
    """Number of samples over which the learning rate rises."""
    lr_warmup_fraction: float | None = option("--lr-warmup-fraction", None, at_least=0, below=1)
    """Share of the decay's length over which the learning rate rises, instead of a number of iterations or samples."""
    lr_warmup_init: float = option("--lr-warmup-init", 0.0, at_least=0)
    """Learning rate at the first iteration of the warm-up."""
    lr_warmup_style: str = option("--lr-warmup-style", "linear", choices=("linear", "log"))
    """Form of the warm-up of the learning rate: evenly, or by the logarithm of the updates, as DeepSpeed's WarmupLR
    does."""
    lr_schedule_delay: int = option("--lr-schedule-delay", 0, at_least=0)
    """Number of updates at the initial learning rate before the schedule begins; DeepSpeed's schedulers have 1."""
    lr_wsd_decay_style: str = option(
        "--lr-wsd-decay-style", "exponential", choices=("exponential", "linear", "cosine", "minus_sqrt")
    )
    """Form of the last part of a WSD schedule."""
    lr_wsd_decay_iters: int | None = option("--lr-wsd-decay-iters", None, at_least=1)
    """Iterations of the last part of a WSD schedule."""
    lr_wsd_decay_samples: int | None = option("--lr-wsd-decay-samples", None, at_least=1)
    """Number of samples of the last part of a WSD schedule."""
    override_opt_param_scheduler: bool = option("--override-opt_param-scheduler", False)
    """On resuming, take the schedule of the flags, not the checkpoint's. Without this flag or
    --use-checkpoint-opt_param-scheduler a difference between them is refused."""
    use_checkpoint_opt_param_scheduler: bool = option("--use-checkpoint-opt_param-scheduler", False)
    """On resuming, take the schedule of the checkpoint, not the flags'. Without this flag or
    --override-opt_param-scheduler a difference between them is refused."""
    overlap_param_gather: bool = option("--overlap-param-gather", False)
    """Gather the distributed optimizer's weights while the forward pass runs."""

    adam: AdamConfig = concern(AdamConfig)
    """Options of the optimizer adam."""
    sgd: SgdConfig = concern(SgdConfig)
    """Options of the optimizer sgd."""
    muon: MuonConfig = concern(MuonConfig)
    """Options of the optimizer muon."""
    lion: LionConfig = concern(LionConfig)
    """Options of the optimizer lion."""

    @property
    def update_rules(self) -> tuple[UpdateRule, ...]:
        """The rule that --optimizer names and, if that is not for all parameters, the rule of the others."""
        named = next(rule for rule in RULES.values() if rule.name == self.optimizer_type)
        return (named,) if named.rest is None else (named, RULES[named.rest(self.options_of(named))])

    def options_of(self, rule: UpdateRule) -> Any:
        """The section with the options of a rule."""
        return getattr(self, rule.name)

    def derive(self) -> None:
        self.fill("start_weight_decay", lambda: self.weight_decay)
        self.fill("end_weight_decay", lambda: self.weight_decay)
        for rule in RULES.values():
            meant = rule.other_names.get(self.optimizer_type)
            if meant is not None:
                self.optimizer_type = rule.name
                for name, value in meant.items():
                    if getattr(self, name) == rule.options.__dataclass_fields__[name].default:
                        setattr(self, name, value)

    def rules(self) -> Iterator[Finding]:
        if self.apply_wd_to_qk_layernorm and self.no_weight_decay_params is not None:
            rule = "--no-weight-decay-params alone says which parameters are not decayed"
            yield Finding("--apply-wd-to-qk-layernorm", None, rule, "leave one of them out")


@dataclass(kw_only=True)
class OffloadConfig(Config):
    """Options that keep optimizer states in host memory, or in a file ("ZeRO-Offload", 2021; "ZeRO-Infinity", 2021)."""

    cpu_offload_optimizer: bool = option("--cpu-offload-optimizer", False)
    """Keep optimizer states in host memory, and update there."""
    optimizer_offload_fraction: float = option("--optimizer-offload-fraction", 1.0, at_least=0, at_most=1)
    """Share of the optimizer states that is kept in host memory, or in the file."""
    nvme_path: str | None = option("--nvme-path", None)
    """Directory of files in which optimizer states are kept, and mapped into host memory where they are updated."""

    @property
    def offloads_optimizer(self) -> bool:
        """Whether --cpu-offload-optimizer or --nvme-path is given and --optimizer-offload-fraction is above 0."""
        return (self.cpu_offload_optimizer or self.nvme_path is not None) and self.optimizer_offload_fraction > 0

    def rules(self) -> Iterator[Finding]:
        if self.cpu_offload_optimizer and self.nvme_path is not None:
            rule = "--cpu-offload-optimizer keeps the same states in host memory"
            yield Finding("--nvme-path", self.nvme_path, rule, "leave one of them out")
        if self.optimizer_offload_fraction < 1 and not (self.cpu_offload_optimizer or self.nvme_path is not None):
            rule = "needs --cpu-offload-optimizer (--optimizer-cpu-offload) or --nvme-path"
            yield Finding("--optimizer-offload-fraction", self.optimizer_offload_fraction, rule, "add one of them")
