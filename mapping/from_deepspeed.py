"""DeepSpeed's JSON configuration, beside the flags: what it says becomes arguments, what both say must agree."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from mapping.flags import ROWS
from mapping.parser import Given, suggest
from mapping.tree import leaves
from parallel_core.config import AllConfig
from parallel_core.config.base import Unknown

Arguments = dict[str, Any]


def to(argument: str, read: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Arguments]:
    """The value goes to this argument, read by `read`."""
    return lambda value: {argument: read(value)}


def nothing(value: Any) -> Arguments:
    """A key that changes memory, speed or a log only."""
    return {}


def one_of(choices: Mapping[Any, Arguments]) -> Callable[[Any], Arguments]:
    """Each value says something else; others are refused."""

    def read(value: Any) -> Arguments:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(map(str, choices))}")
        return choices[value]

    return read


def stage(value: Any) -> Arguments:
    if value not in (0, 1, 2, 3):
        raise ValueError("must be 0, 1, 2 or 3")
    return {"zero_stage": value, "use_distributed_optimizer": value > 0}


REDUCTION = {
    "fp32": {"accumulate_allreduce_grads_in_fp32": True},
    "bf16": {"grad_reduce_in_bf16": True},
    "bfp16": {"grad_reduce_in_bf16": True},
    None: {},
}

KEYS: dict[str, Callable[[Any], Arguments]] = {
    "train_batch_size": to("global_batch_size"),
    "train_micro_batch_size_per_gpu": to("micro_batch_size"),
    "gradient_accumulation_steps": to("micro_batch_num"),
    "gradient_clipping": to("clip_grad", float),
    "communication_data_type": one_of(REDUCTION),
    "zero_optimization.stage": stage,
    "zero_optimization.overlap_comm": to("overlap_grad_reduce"),
    "zero_optimization.reduce_bucket_size": to("ddp_bucket_size", int),
    "fp16.enabled": to("fp16"),
    "fp16.loss_scale": to("loss_scale", lambda value: float(value) or None),
    "fp16.loss_scale_window": to("loss_scale_window", float),
    "fp16.initial_scale_power": to("initial_loss_scale", lambda value: 2.0**value),
    "fp16.hysteresis": to("hysteresis"),
    "fp16.min_loss_scale": to("min_loss_scale", float),
    "fp16.consecutive_hysteresis": to("consecutive_hysteresis"),
    "bf16.enabled": to("bf16"),
    "optimizer.type": one_of({"AdamW": {"optimizer": "adam"}, "Adam": {"optimizer": "adam"}}),
    "optimizer.params.lr": to("lr", float),
    "optimizer.params.betas": lambda value: {"adam_beta1": value[0], "adam_beta2": value[1]},
    "optimizer.params.eps": to("adam_eps", float),
    "optimizer.params.weight_decay": to("weight_decay", float),
    "optimizer.params.adam_w_mode": to("decoupled_weight_decay"),
    "scheduler.type": one_of(
        {"WarmupLR": {"lr_decay_style": "constant"}, "WarmupDecayLR": {"lr_decay_style": "linear"}}
    ),
    "scheduler.params.warmup_min_lr": lambda value: {"lr_warmup_init": float(value), "min_lr": float(value)},
    "scheduler.params.warmup_max_lr": to("lr", float),
    "scheduler.params.warmup_num_steps": to("lr_warmup_iters"),
    "scheduler.params.total_num_steps": to("lr_decay_iters"),
    "scheduler.params.warmup_type": one_of({"linear": {}}),
}
"""What each key says, in arguments."""

WITHOUT_EFFECT = (
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "memory_breakdown",
    "prescale_gradients",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "fp16.auto_cast",
    "optimizer.params.torch_adam",
    *(
        f"zero_optimization.{name}"
        for name in (
            "offload_optimizer",
            "offload_param",
            "allgather_partitions",
            "allgather_bucket_size",
            "reduce_scatter",
            "contiguous_gradients",
            "round_robin_gradients",
            "sub_group_size",
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_gather_16bit_weights_on_model_save",
        )
    ),
)
"""Keys that change memory, speed or a log only; with everything below them."""


_PROBES = {
    "optimizer.params.betas": (0.9, 0.999),
    "optimizer.type": "AdamW",
    "scheduler.type": "WarmupDecayLR",
    "scheduler.params.warmup_type": "linear",
    "communication_data_type": "fp32",
}
"""A value of each kind that is not a number, to ask a key which arguments it fills."""


class Auto(NamedTuple):
    """A key that leaves an argument to the flags."""

    key: str
    argument: str


def apply(path: str, args: Namespace, given: Sequence[Given]) -> tuple[list[Auto], list[str]]:
    """Put what the file says into `args`. Returns what it leaves to the flags, and the errors."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [], [f"--deepspeed-config {path}: cannot be read: {error}"]
    if not isinstance(content, dict):
        return [], [f"--deepspeed-config {path}: must hold an object with keys and values"]
    typed = {entry.row.dest: entry.name for entry in given}
    said = {
        key: value
        for key, value in leaves(content, lambda path: path not in WITHOUT_EFFECT)
        if key not in WITHOUT_EFFECT
    }
    autos = [
        Auto(key, argument)
        for key, value in said.items()
        if value == "auto" and key in KEYS
        for argument in KEYS[key](_PROBES.get(key, 1))
    ]
    errors = [error for key, value in said.items() for error in _apply_key(key, value, args, typed)]
    if "scheduler.type" in said and "scheduler.params.warmup_type" not in said:
        errors.append('scheduler.params.warmup_type: is "log" if not given, which is not done; give "linear"')
    return autos, errors


def resolved(autos: Sequence[Auto], config: AllConfig) -> tuple[list[str], list[str]]:
    """What each `auto` came to, and a sentence for each that came to nothing."""
    notes, errors = [], []
    for key, argument in autos:
        row = next(row for row in ROWS if row.dest == argument)
        value = attrgetter(row.target)(config)
        may_be_none = argument == "loss_scale"
        if isinstance(value, Unknown) or (value is None and not may_be_none):
            errors.append(f"{key} auto: nothing says it; give {row.name}")
        else:
            notes.append(f"{key} auto: {row.name} {value}")
    return notes, errors


def _apply_key(key: str, value: Any, args: Namespace, typed: Mapping[str, str]) -> Iterator[str]:
    if key not in KEYS:
        yield f"{key}: there is no such key{suggest(key, [*KEYS, *WITHOUT_EFFECT])}"
        return
    if value == "auto":
        return
    try:
        said = KEYS[key](value)
    except (TypeError, IndexError):
        yield f"{key} {value!r}: is not a value of this key"
        return
    except ValueError as error:
        yield f"{key} {value!r}: {error}"
        return
    for argument, wanted in said.items():
        if argument in typed and getattr(args, argument) != wanted:
            yield (
                f"{key} {value}: contradicts {typed[argument]} {getattr(args, argument)}; "
                'change one of them or write "auto"'
            )
        setattr(args, argument, wanted)
