"""Rules of the optimizer and its schedules."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.optimizer import RULES as UPDATE_RULES
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding


def learning_rate_falls(config: Sections) -> Iterator[Finding]:
    schedule, highest = config.optimizer_config, config.optimizer_config.learning_rate
    for flag, rate in (("--min-lr", schedule.min_lr), ("--lr-warmup-init", schedule.lr_warmup_init)):
        if highest is not None and rate > highest:
            yield Finding(flag, rate, f"must not exceed --lr {highest:g}", "lower it")
    own, lowest = schedule.decoupled_lr, schedule.decoupled_min_lr
    if lowest is not None and own is None:
        yield Finding("--decoupled-min-lr", lowest, "needs --decoupled-lr", "add it")
    flag, floor = ("--min-lr", schedule.min_lr) if lowest is None else ("--decoupled-min-lr", lowest)
    if own is not None and floor > own:
        yield Finding(flag, floor, f"must not exceed --decoupled-lr {own:g}", "lower it")


def warmup_ends_before_decay(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    for unit, warmup, decay in (
        ("iters", schedule.lr_warmup_iters, schedule.lr_decay_iters),
        ("samples", schedule.lr_warmup_samples, schedule.lr_decay_samples),
    ):
        if decay is not None and warmup >= decay and schedule.lr_decay_style != "constant":
            yield Finding(
                f"--lr-warmup-{unit}", warmup, f"must be less than the decay, --lr-decay-{unit} {decay}", "lower it"
            )


def wsd_says_when_it_falls(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    if schedule.lr_decay_style != "WSD":
        return
    if config.training_config.train_samples is not None:
        unit, fall, decay = "samples", schedule.lr_wsd_decay_samples, schedule.lr_decay_samples
    else:
        unit, fall, decay = "iters", schedule.lr_wsd_decay_iters, schedule.lr_decay_iters
    if fall is None:
        yield Finding("--lr-decay-style", "WSD", f"needs --lr-wsd-decay-{unit}", "add it")
    elif decay is not None and fall > decay:
        yield Finding(f"--lr-wsd-decay-{unit}", fall, f"must not exceed --lr-decay-{unit} {decay}", "lower it")


def weight_decay_grows_by_style(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    start, end = schedule.start_weight_decay, schedule.end_weight_decay
    if schedule.weight_decay_incr_style == "constant" and not start == end == schedule.weight_decay:
        changed, value = (
            ("--start-weight-decay", start) if start != schedule.weight_decay else ("--end-weight-decay", end)
        )
        rule = (
            f"needs --weight-decay-incr-style linear or cosine to differ from --weight-decay {schedule.weight_decay:g}"
        )
        yield Finding(changed, value, rule, "change it or leave it out")
    elif end < start:
        yield Finding("--end-weight-decay", end, f"must not be less than --start-weight-decay {start:g}", "raise it")


def one_source_of_the_schedule(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    if schedule.override_opt_param_scheduler and schedule.use_checkpoint_opt_param_scheduler:
        yield Finding(
            "--override-opt_param-scheduler",
            "--use-checkpoint-opt_param-scheduler",
            "the schedule comes from the flags or from the checkpoint",
            "leave one out",
        )


def states_of_other_types_are_asked_for(config: Sections) -> Iterator[Finding]:
    """As in Megatron by a switch of their own."""
    adam = config.optimizer_config.adam
    for flag, kind in (("--exp-avg-dtype", adam.exp_avg_dtype), ("--exp-avg-sq-dtype", adam.exp_avg_sq_dtype)):
        if kind != "fp32" and not adam.use_precision_aware_optimizer:
            yield Finding(flag, kind, "needs --use-precision-aware-optimizer", f"add it or leave {flag} out")


def options_go_with_their_rule(config: Sections) -> Iterator[Finding]:
    optimizer = config.optimizer_config
    named = optimizer.update_rules[0]
    for rule in UPDATE_RULES.values():
        for name in rule.exclusive if rule is not named else ():
            value = getattr(optimizer.options_of(rule), name)
            if value:
                flag = rule.options.__dataclass_fields__[name].metadata["flag"]
                reason = f"goes with --optimizer {rule.name}, not {named.name}"
                yield Finding(flag, None if value is True else value, reason, "leave it out")
    yield from named.findings(config)


def gradients_are_clipped_once(config: Sections) -> Iterator[Finding]:
    optimizer = config.optimizer_config
    if optimizer.clip_grad_value is not None and optimizer.clip_grad > 0:
        rule = f"does not go with --clip-grad {optimizer.clip_grad:g}: gradients are clipped by value or by norm"
        yield Finding("--clip-grad-value", optimizer.clip_grad_value, rule, "give --clip-grad 0")


RULES = (
    learning_rate_falls,
    warmup_ends_before_decay,
    wsd_says_when_it_falls,
    weight_decay_grows_by_style,
    one_source_of_the_schedule,
    states_of_other_types_are_asked_for,
    options_go_with_their_rule,
    gradients_are_clipped_once,
)
