"""Whether a checkpoint's learning-rate and weight-decay schedule is that of the flags; Megatron refuses another one."""

from collections.abc import Mapping
from typing import Any

from parallel_core.config import OptimizerConfig

FLAGS = {
    "max_lr": "--lr",
    "min_lr": "--min-lr",
    "decoupled_lr": "--decoupled-lr",
    "decoupled_min_lr": "--decoupled-min-lr",
    "init_lr": "--lr-warmup-init",
    "lr_warmup_steps": "--lr-warmup-iters, --lr-warmup-samples or --lr-warmup-fraction",
    "lr_warmup_style": "--lr-warmup-style",
    "lr_delay_steps": "--lr-schedule-delay",
    "lr_decay_steps": "--lr-decay-iters or --lr-decay-samples (--train-iters if neither is given)",
    "lr_decay_style": "--lr-decay-style",
    "start_wd": "--start-weight-decay",
    "end_wd": "--end-weight-decay",
    "wd_incr_style": "--weight-decay-incr-style",
    "wd_incr_steps": "--train-iters",
    "wsd_decay_steps": "--lr-wsd-decay-iters or --lr-wsd-decay-samples",
    "lr_wsd_decay_style": "--lr-wsd-decay-style",
}
"""Which flag gives an entry of the scheduler's state; steps are counted in samples."""


def schedule_problems(then: Mapping[str, Any], now: Mapping[str, Any], optimizer: OptimizerConfig) -> list[str]:
    """Entries in which the state of the checkpoint's scheduler and that of the flags differ, if no flag says which of
    them counts."""
    if not isinstance(then.get("num_steps"), int | float):
        return ["the checkpoint was saved without its schedule; load the weights alone by --no-load-optim"]
    if optimizer.override_opt_param_scheduler or optimizer.use_checkpoint_opt_param_scheduler:
        return []
    remedy = "add --override-opt_param-scheduler to take the flags' or --use-checkpoint-opt_param-scheduler the other"
    return [
        f"{flag}: {entry} is {now[entry]} by the flags and {then[entry]} in the checkpoint; {remedy}"
        for entry, flag in FLAGS.items()
        if entry in then and now[entry] != then[entry] and not _is_idle(entry, now, then)
    ]


def _is_idle(entry: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """How long weight decay grows says nothing if it doesn't grow."""
    return entry == "wd_incr_steps" and now["wd_incr_style"] == then["wd_incr_style"] == "constant"
