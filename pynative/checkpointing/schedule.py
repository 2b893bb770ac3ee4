"""Whether the schedule of the flags is the checkpoint's; Megatron wants it equal unless told whose counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.checkpoint.manifest import Manifest
    from pynative.training.callbacks.base import TrainingState

FLAGS = {
    "max_lr": "--lr",
    "min_lr": "--min-lr",
    "init_lr": "--lr-warmup-init",
    "lr_warmup_steps": "--lr-warmup-iters, --lr-warmup-samples or --lr-warmup-fraction",
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


def schedule_problems(manifest: Manifest, state: TrainingState) -> list[str]:
    """Entries in which flags and checkpoint differ, if no flag says which of them counts."""
    optimizer = state.config.optimizer_config
    if optimizer.override_opt_param_scheduler or optimizer.use_checkpoint_opt_param_scheduler:
        return []
    now, then = state.step_cell.scheduler.state_dict(), manifest.scheduler
    remedy = "add --override-opt_param-scheduler to take the flags' or --use-checkpoint-opt_param-scheduler the other"
    return [
        f"{flag}: {entry} is {now[entry]} by the flags and {then[entry]} in the checkpoint; {remedy}"
        for entry, flag in FLAGS.items()
        if entry in then and now[entry] != then[entry] and not _is_idle(entry, now, then)
    ]


def _is_idle(entry: str, now: dict, then: dict) -> bool:
    """How long weight decay grows says nothing if it doesn't grow."""
    return entry == "wd_incr_steps" and now["wd_incr_style"] == then["wd_incr_style"] == "constant"
