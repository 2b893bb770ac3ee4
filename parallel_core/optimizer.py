"""The treatment of each parameter by an optimizer, the states that it keeps of it, and the schedule of its rates, as
values: nothing is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from parallel_core.buffers.layout import BufferPlan, Span, overlaps_in_order
from parallel_core.config import AllConfig, OptimizerConfig
from parallel_core.config.all import required_to_train
from parallel_core.config.base import complain
from parallel_core.config.optimizer import RULES
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class Treatment:
    """The properties of a parameter that matter to an update. rule: name of its `UpdateRule`; is_decayed: whether
    weight decay acts on it; has_decoupled_lr: whether its learning rate is the schedule's for --decoupled-lr;
    rate_factor: factor of its learning rate, and of Adam's epsilon for it (mu-P)."""

    rule: str
    """The name of the parameter's `UpdateRule`."""
    is_decayed: bool
    """Whether weight decay acts on the parameter."""
    has_decoupled_lr: bool
    """Whether the parameter's learning rate is the schedule's for --decoupled-lr."""
    rate_factor: float = 1.0
    """Factor of the parameter's learning rate, and of Adam's epsilon for it (mu-P)."""


def treatment(spec: ShardSpec, config: OptimizerConfig) -> Treatment:
    """The properties by which a configuration's optimizer treats a parameter."""
    rule, is_outer = update_rule(spec, config), spec.role == "embedding or output"
    has_own = is_outer and config.decoupled_lr is not None
    factor = 1.0 if has_own else rate_factor(spec, rule, config.width_multiplier)
    return Treatment(rule.name, is_decayed(spec, config), has_own, factor)


def rate_factor(spec: ShardSpec, rule: UpdateRule, width: float) -> float:
    """Factor of a parameter's learning rate in a model `width` times as wide as the one for which the rate was chosen
    (mu-P: Yang et al., 2022, table 8)."""
    is_inner = len(spec.shape) > 1 and spec.role not in ("embedding or output", "positions")
    of_matrices, of_others = rule.rate_by_width
    return float(width ** (of_matrices if is_inner else of_others))


def update_rule(spec: ShardSpec, config: OptimizerConfig) -> UpdateRule:
    """The rule by which a parameter is updated: the chosen optimizer's, or its second one for parameters that the first
    does not treat."""
    named, *rest = config.update_rules
    return named if not rest or named.treats(spec) else rest[0]


def is_decayed(spec: ShardSpec, config: OptimizerConfig) -> bool:
    """Whether weight decay acts on a parameter: not if its name ends with one of `no_weight_decay_params`; without that
    list by Megatron's rule (`ShardSpec.is_decayed`, and --apply-wd-to-qk-layernorm)."""
    if config.no_weight_decay_params is not None:
        return not spec.name.endswith(tuple(config.no_weight_decay_params))
    return spec.is_decayed or (config.apply_wd_to_qk_layernorm and spec.role == "head norm")


MAIN_PARAM = "main_param"
"""The state of a 16-bit parameter that is its value in float32 (Micikevicius et al., "Mixed Precision Training")."""


def moment_names(config: OptimizerConfig) -> tuple[str, ...]:
    """Names of the states of all update rules of the optimizer, without `MAIN_PARAM`."""
    return tuple(name for rule in config.update_rules for name in rule.moments(config.options_of(rule)))


class PlannedState(NamedTuple):
    """One kind of state, such as a moment, of those of a flat buffer's parameters that have it: its type, and the spans
    of the buffer, padding included, of which a rank keeps it."""

    dtype: str
    spans: tuple[Span, ...]
    """The spans of the flat buffer of which the rank keeps the state."""

    @property
    def bytes(self) -> int:
        """Bytes of the state on the rank, those for the buffer's padding included."""
        return sum(span.size for span in self.spans) * DTYPES[self.dtype].bytes


def plan_states(plan: BufferPlan, owned: Sequence[Span], config: OptimizerConfig) -> dict[str, PlannedState]:
    """Name -> state that a rank keeps of a flat buffer's parameters; without spans where the rank owns none of the
    parameters that have it. owned: the spans of the buffer that the rank updates, in ascending order."""
    spans: dict[tuple[str, str], list[Span]] = {}
    segments = [*plan.segments(partial(treatment, config=config))]
    types = [state_types(segment.treatment.rule, plan.parameter_type, config) for segment in segments]
    for of_segment in types:
        for name, dtype in of_segment.items():
            spans.setdefault((name, dtype), [])
    for number, span in overlaps_in_order([segment.span for segment in segments], owned):
        for name, dtype in types[number].items():
            spans[name, dtype].append(span)
    return {name: PlannedState(dtype, tuple(kept)) for (name, dtype), kept in spans.items()}


def state_types(rule: str, parameter_type: str, config: OptimizerConfig) -> dict[str, str]:
    """Name -> type of every state of a parameter with this rule and type; each element of the parameter has one element
    of each."""
    main_param = {} if parameter_type == "float32" else {MAIN_PARAM: "float32"}
    return main_param | RULES[rule].moments(config.options_of(RULES[rule]))


def get_optimizer_param_scheduler(config: AllConfig) -> OptimizerParamScheduler:
    """The schedule of learning rate and weight decay of the configuration, counted in samples. Raises `ConfigError` if
    the learning rate is missing, or the length of a run that trains (one in epochs may leave it open) is missing or
    below one step, and ValueError as `OptimizerParamScheduler`."""
    complain(required_to_train(config))
    optimizer, training = config.optimizer_config, config.training_config
    batch = config.dataset_config.global_batch_size
    by_samples = training.train_samples is not None
    # An evaluation without training has no steps.
    total = training.train_samples or training.training_iters * batch or batch

    def samples(iterations: int | None, count: int | None) -> int | None:
        return count if by_samples else None if iterations is None else iterations * batch

    decay = samples(optimizer.lr_decay_iters, optimizer.lr_decay_samples) or total
    warm_up: float = samples(optimizer.lr_warmup_iters, optimizer.lr_warmup_samples) or 0
    if optimizer.lr_warmup_fraction is not None:
        warm_up = optimizer.lr_warmup_fraction * decay
    assert optimizer.learning_rate is not None, "required above"
    return OptimizerParamScheduler(
        max_lr=optimizer.learning_rate,
        min_lr=optimizer.min_lr,
        init_lr=optimizer.lr_warmup_init,
        lr_warmup_steps=warm_up,
        lr_warmup_style=optimizer.lr_warmup_style,
        lr_warmup_unit=batch,
        lr_delay_steps=optimizer.lr_schedule_delay * batch,
        lr_decay_steps=decay,
        lr_decay_style=optimizer.lr_decay_style,
        start_wd=optimizer.start_weight_decay,
        end_wd=optimizer.end_weight_decay,
        wd_incr_steps=total,
        wd_incr_style=optimizer.weight_decay_incr_style,
        wsd_decay_steps=samples(optimizer.lr_wsd_decay_iters, optimizer.lr_wsd_decay_samples),
        lr_wsd_decay_style=optimizer.lr_wsd_decay_style,
        decoupled_lr=optimizer.decoupled_lr,
        decoupled_min_lr=optimizer.decoupled_min_lr,
    )
