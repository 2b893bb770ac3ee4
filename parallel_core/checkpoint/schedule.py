"""Comparison of a checkpoint's learning-rate and weight-decay schedule with that of the flags."""

from collections.abc import Mapping
from typing import Any

from parallel_core.config import AllConfig

_FLAGS = {
    "max_lr": "--lr",
    "min_lr": "--min-lr",
    "decoupled_lr": "--decoupled-lr",
    "decoupled_min_lr": "--decoupled-min-lr",
    "init_lr": "--lr-warmup-init",
    "lr_warmup_style": "--lr-warmup-style",
    "lr_decay_style": "--lr-decay-style",
    "start_wd": "--start-weight-decay",
    "end_wd": "--end-weight-decay",
    "wd_incr_style": "--weight-decay-incr-style",
    "lr_wsd_decay_style": "--lr-wsd-decay-style",
}
"""Entry of the scheduler's state -> the flag that gives it."""

_LENGTHS = {
    "lr_warmup_steps": ("--lr-warmup-{} or --lr-warmup-fraction", "the learning rate rises over"),
    "lr_delay_steps": ("--lr-schedule-delay", "the schedule begins after"),
    "lr_decay_steps": ("--lr-decay-{}, or --train-{} without it", "the learning rate is scheduled over"),
    "wd_incr_steps": ("--train-{}", "the weight decay grows over"),
    "wsd_decay_steps": ("--lr-wsd-decay-{}", "the learning rate falls over the last"),
}
"""Entry that is counted in samples -> (its flag, of which {} is `iters` or `samples`; its meaning in words)."""

_REMEDY = (
    "add --override-opt_param-scheduler to take the flags' or --use-checkpoint-opt_param-scheduler to take the "
    "checkpoint's"
)


def schedule_problems(then: Mapping[str, Any], now: Mapping[str, Any], config: AllConfig) -> list[str]:
    """A sentence for each entry that differs between `then`, the state of the checkpoint's scheduler, and `now`, the
    state by the flags. Compared are the entries that both have, without `num_steps` and `lr_warmup_unit`, and without
    those that neither schedule reads: by their styles (such as the length of WSD's fall if both decay in other styles),
    or without a warmup (such as its style).

    Empty if --override-opt_param-scheduler or --use-checkpoint-opt_param-scheduler says which state counts. If `then`
    has no schedule: one sentence about that alone, even with these flags. Lengths are told in steps, with
    --train-samples in samples.
    """
    if not isinstance(then.get("num_steps"), int | float):
        return ["the checkpoint was saved without its schedule; load the weights alone by --no-load-optim"]
    optimizer = config.optimizer_config
    if optimizer.override_opt_param_scheduler or optimizer.use_checkpoint_opt_param_scheduler:
        return []
    idle = _unread(now) & _unread({**now, **then})
    compared = (entry for entry in (*_FLAGS, *_LENGTHS) if entry in then and entry not in idle)
    different = [entry for entry in compared if now[entry] != then[entry]]
    unit = "iters" if config.training_config.train_samples is None else "samples"
    return [f"{_difference(entry, then, now, unit)}; {_REMEDY}" for entry in different]


def _difference(entry: str, then: Mapping[str, Any], now: Mapping[str, Any], unit: str) -> str:
    if entry in _FLAGS:
        return f"{_FLAGS[entry]}: {entry} is {now[entry]} by the flags and {then[entry]} in the checkpoint"
    flags, words = _LENGTHS[entry]
    batches = now["lr_warmup_unit"], then.get("lr_warmup_unit") or now["lr_warmup_unit"]
    ours, theirs = (
        _length(state[entry], batch, unit, batches[0] != batches[1])
        for state, batch in zip((now, then), batches, strict=True)
    )
    return f"{flags.replace('{}', unit)}: {words} {ours} by the flags, {theirs} in the checkpoint"


def _length(samples: float | None, batch: int, unit: str, says_batch: bool) -> str:
    """A number of samples in words; for `unit` "iters" as steps of `batch` samples, which is said if `says_batch`."""
    if samples is None:
        return "none"
    if unit == "samples":
        return f"{samples:,.12g} samples"
    return f"{samples / batch:,.12g} steps{f' of {batch} samples' * says_batch}"


def _unread(state: Mapping[str, Any]) -> set[str]:
    """The entries that a schedule in this state does not read, whatever their values."""
    warms_up, is_constant = bool(state["lr_warmup_steps"]), state["lr_decay_style"] == "constant"
    unread = {
        ("lr_warmup_style", "init_lr"): not warms_up,
        ("lr_delay_steps",): is_constant and not warms_up,
        ("min_lr", "decoupled_min_lr", "lr_decay_steps"): is_constant,
        ("lr_wsd_decay_style", "wsd_decay_steps"): state["lr_decay_style"] != "WSD",
        ("start_wd", "wd_incr_steps"): state["wd_incr_style"] == "constant",
    }
    return {entry for entries, is_idle in unread.items() if is_idle for entry in entries}
