"""Rules of the optimizer and its schedules."""

from collections.abc import Iterator

from parallel_core.config.optimizer import RULES as UPDATE_RULES
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding


def learning_rate_falls(config: Sections) -> Iterator[Finding]:
    schedule, highest = config.optimizer_config, config.optimizer_config.learning_rate
    for name in ("min_lr", "lr_warmup_init"):
        if highest is not None and getattr(schedule, name) > highest:
            yield schedule.breaks(name, f"must not exceed --lr {highest:g}", "lower it")
    own, lowest = schedule.decoupled_lr, schedule.decoupled_min_lr
    if lowest is not None and own is None:
        yield schedule.needs("decoupled_min_lr", "--decoupled-lr")
    floor = "min_lr" if lowest is None else "decoupled_min_lr"
    if own is not None and getattr(schedule, floor) > own:
        yield schedule.breaks(floor, f"must not exceed --decoupled-lr {own:g}", "lower it")


def warmup_ends_before_decay(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    for unit in ("iters", "samples"):
        warmup, decay = getattr(schedule, f"lr_warmup_{unit}"), getattr(schedule, f"lr_decay_{unit}")
        if decay is not None and warmup >= decay and schedule.lr_decay_style != "constant":
            rule = f"must be less than the decay, --lr-decay-{unit} {decay}"
            yield schedule.breaks(f"lr_warmup_{unit}", rule, "lower it")


def wsd_says_when_it_falls(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    if schedule.lr_decay_style != "WSD":
        return
    unit = "iters" if config.training_config.train_samples is None else "samples"
    fall, decay = getattr(schedule, f"lr_wsd_decay_{unit}"), getattr(schedule, f"lr_decay_{unit}")
    if fall is None:
        yield schedule.needs("lr_decay_style", f"--lr-wsd-decay-{unit}")
    elif decay is not None and fall > decay:
        yield schedule.breaks(f"lr_wsd_decay_{unit}", f"must not exceed --lr-decay-{unit} {decay}", "lower it")


def weight_decay_grows_by_style(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    start, end, plain = schedule.start_weight_decay, schedule.end_weight_decay, schedule.weight_decay
    if schedule.weight_decay_incr_style == "constant" and not start == end == plain:
        changed = "start_weight_decay" if start != plain else "end_weight_decay"
        needed = f"--weight-decay-incr-style linear or cosine to differ from --weight-decay {plain:g}"
        yield schedule.needs(changed, needed, "change it or leave it out")
    elif end < start:
        yield schedule.breaks("end_weight_decay", f"must not be less than --start-weight-decay {start:g}", "raise it")


def one_source_of_the_schedule(config: Sections) -> Iterator[Finding]:
    schedule = config.optimizer_config
    if schedule.override_opt_param_scheduler and schedule.use_checkpoint_opt_param_scheduler:
        rule, other = "the schedule comes from the flags or from the checkpoint", "--use-checkpoint-opt_param-scheduler"
        yield schedule.breaks("override_opt_param_scheduler", rule, "leave one out", other)


def states_of_other_types_are_asked_for(config: Sections) -> Iterator[Finding]:
    """Check that types of Adam's states other than float32 come with --use-precision-aware-optimizer, as in
    Megatron."""
    adam = config.optimizer_config.adam
    for name, flag in (("exp_avg_dtype", "--exp-avg-dtype"), ("exp_avg_sq_dtype", "--exp-avg-sq-dtype")):
        if getattr(adam, name) != "fp32" and not adam.use_precision_aware_optimizer:
            yield adam.needs(name, "--use-precision-aware-optimizer", f"add it or leave {flag} out")


def options_go_with_their_rule(config: Sections) -> Iterator[Finding]:
    optimizer = config.optimizer_config
    named = optimizer.update_rules[0]
    for rule in UPDATE_RULES.values():
        options = optimizer.options_of(rule)
        for name in rule.exclusive if rule is not named else ():
            if getattr(options, name):
                yield options.breaks(name, f"goes with --optimizer {rule.name}, not {named.name}", "leave it out")
    yield from named.findings(config)


def rates_begin_alike(config: Sections) -> Iterator[Finding]:
    optimizer = config.optimizer_config
    if optimizer.width_multiplier != 1.0 and optimizer.lr_warmup_init > 0:
        rule = "is one rate for all parameters, whose rates mu-P (--use-mup) makes differ"
        yield optimizer.breaks("lr_warmup_init", rule, "leave one of them out")


def gradients_are_clipped_once(config: Sections) -> Iterator[Finding]:
    optimizer = config.optimizer_config
    if optimizer.clip_grad_value is not None and optimizer.clip_grad > 0:
        other = f"--clip-grad {optimizer.clip_grad:g}: gradients are clipped by value or by norm"
        yield optimizer.clashes("clip_grad_value", other, "give --clip-grad 0")
