"""DeepSpeed's JSON configuration, beside the flags: its values become arguments, and must agree with flags for the
same."""

import json
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from mapping.flags import Flag
from mapping.given import PARTS_OF, ROW_OF, Given
from mapping.readers.meaning import Entries, Meaning, Values, each, nothing, to, unknown, words
from parallel_core.config import AllConfig
from parallel_core.config.base import Unknown
from parallel_core.config.serialise import leaves
from parallel_core.findings import Finding

_COMMENT_OR_AUTO = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|\b(auto)\b')
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*(?:[}\]]|\Z))')


def _loads(text: str) -> Any:
    """The value of a JSON text that may have comments, a bare `auto`, trailing commas and no outer braces; raises
    ValueError where it is no JSON even so."""
    plain = _COMMENT_OR_AUTO.sub(lambda found: found[1] or ('"auto"' if found[2] else ""), text)
    plain = _LAST_COMMA.sub(lambda found: found[1] or "", plain).strip()
    return json.loads(f"{{{plain}}}" if plain.startswith('"') else plain)


def stage(value: Any, entries: Entries) -> Values:
    if value not in (0, 1, 2, 3):
        raise ValueError("must be 0, 1, 2 or 3")
    return {"zero_stage": value, "use_distributed_optimizer": value > 0}  # A flag that says otherwise contradicts it.


def learning_rate(value: Any, entries: Entries) -> Values | str:
    """The meaning of the optimizer's learning rate: --lr. Where the schedule has a number as its largest rate,
    DeepSpeed takes that: then the reason, a str, why the key does nothing, unless the file gives the rate as `auto`.
    Raises ValueError or TypeError for another value that `float` does not take."""
    other = "scheduler.params.warmup_max_lr"
    if entries.get("optimizer.params.lr") != "auto" and isinstance(entries.get(other), int | float):
        return f"as in DeepSpeed, {other} counts"
    return {"lr": float(value)}


def betas(value: Any, entries: Entries) -> Values:
    """The meaning of the decays of Adam's two averages: the arguments adam_beta1 and adam_beta2. Raises ValueError for
    what is no list of two numbers."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or any(isinstance(part, bool) or not isinstance(part, int | float) for part in value):
        raise ValueError("must be two numbers")
    return {"adam_beta1": value[0], "adam_beta2": value[1]}


def if_read(meaning: Meaning, other: str, *wanted: str) -> Meaning:
    """The meaning of a key that DeepSpeed reads only where the key `other` has one of the `wanted` values: `meaning`
    there, elsewhere the reason, a str, why it does nothing."""

    def read(value: Any, entries: Entries) -> Values | str:
        is_read = entries.get(other) in wanted
        return meaning(value, entries) if is_read else f"only {' or '.join(wanted)} as {other} reads it"

    return read


_ZERO = "zero_optimization."
_OPTIMIZER, _WEIGHTS = f"{_ZERO}offload_optimizer.", f"{_ZERO}offload_param."

OPTIMIZERS: dict[Any, Values] = {
    "AdamW": {"optimizer": "adam"},
    "Adam": {"optimizer": "adam"},
    "SGD": {"optimizer": "sgd"},
    "Muon": {
        "optimizer": "muon",
        "muon_nesterov": True,
        "muon_scale_mode": "shape_scaling",
        "muon_split_qkv": False,
    },
}

_OF_SPEED = "buffer_count buffer_size max_in_cpu pin_memory pipeline_read pipeline_write fast_init"
_ASKS_FOR_NOTHING = {False: "it asks for nothing, as without it"}
_STAYS = {"none": "nothing is offloaded, as without it"}

KEYS: dict[str, Meaning] = {
    "train_batch_size": to("global_batch_size"),
    "train_micro_batch_size_per_gpu": to("micro_batch_size"),
    "gradient_accumulation_steps": to("micro_batch_num"),
    "gradient_clipping": to("clip_grad", read=float),
    "communication_data_type": words(
        {
            "fp32": {"accumulate_allreduce_grads_in_fp32": True, "communication_data_type": "fp32"},
            "fp16": {"communication_data_type": "fp16"},
            **{name: {"communication_data_type": "bf16"} for name in ("bf16", "bfp16")},
            None: {},
        }
    ),
    "prescale_gradients": words({is_on: {"ddp_average_in_collective": not is_on} for is_on in (True, False)}),
    "sparse_gradients": words(_ASKS_FOR_NOTHING),
    "zero_optimization.stage": stage,
    "zero_optimization.overlap_comm": to("overlap_grad_reduce"),
    "zero_optimization.reduce_bucket_size": to("ddp_bucket_size", read=int),
    "fp16.enabled": to("fp16"),
    "fp16.loss_scale": to("loss_scale", read=lambda value: float(value) or None),
    "fp16.loss_scale_window": to("loss_scale_window", read=float),
    "fp16.initial_scale_power": lambda value, entries: {"initial_loss_scale": 2.0**value, "loss_scaler": "deepspeed"},
    "fp16.hysteresis": to("hysteresis"),
    "fp16.min_loss_scale": to("min_loss_scale", read=float),
    "fp16.consecutive_hysteresis": to("consecutive_hysteresis"),
    "bf16.enabled": to("bf16"),
    "optimizer.type": words(OPTIMIZERS),
    "optimizer.params.lr": learning_rate,
    "optimizer.params.betas": betas,
    "optimizer.params.eps": to("adam_eps", read=float),
    "optimizer.params.weight_decay": to("weight_decay", read=float),
    "optimizer.params.adam_w_mode": to("decoupled_weight_decay"),
    "optimizer.params.momentum": if_read(
        to("sgd_momentum", "muon_momentum", read=float), "optimizer.type", "SGD", "Muon"
    ),
    "optimizer.params.nesterov": if_read(words(_ASKS_FOR_NOTHING), "optimizer.type", "SGD"),
    "scheduler.type": words(
        {
            "WarmupLR": {"lr_decay_style": "constant", "lr_schedule_delay": 1},
            "WarmupDecayLR": {"lr_decay_style": "linear", "lr_schedule_delay": 1},
        }
    ),
    "scheduler.params.warmup_min_lr": to("lr_warmup_init", "min_lr", read=float),
    "scheduler.params.warmup_max_lr": to("lr", read=float),
    "scheduler.params.warmup_num_steps": to("lr_warmup_iters", read=lambda value: max(2, value)),
    "scheduler.params.total_num_steps": to("lr_decay_iters"),
    "scheduler.params.warmup_type": words({style: {"lr_warmup_style": style} for style in ("linear", "log")}),
    f"{_OPTIMIZER}device": words({**_STAYS, "cpu": {"cpu_offload_optimizer": True}, "nvme": {}}),
    f"{_OPTIMIZER}nvme_path": if_read(to("nvme_path"), f"{_OPTIMIZER}device", "nvme"),
    f"{_OPTIMIZER}ratio": if_read(to("optimizer_offload_fraction", read=float), f"{_OPTIMIZER}device", "cpu", "nvme"),
    f"{_WEIGHTS}device": words({**_STAYS, "cpu": {"cpu_offload_params": True}}),
    f"{_WEIGHTS}nvme_path": nothing("weights are kept in host memory at most"),
    f"{_WEIGHTS}ratio": nothing("all of the shard's weights are kept in host memory, or none"),
    **each(
        "steps_per_print wall_clock_breakdown dump_state memory_breakdown flops_profiler comms_logger",
        nothing("it only logs"),
    ),
    "activation_checkpointing": nothing(
        "the flags of recomputation, such as --recompute-granularity, say what is kept and how"
    ),
    "gradient_predivide_factor": nothing(
        "the mean is the same; prescale_gradients says whether it is divided before the sum"
    ),
    "zero_allow_untested_optimizer": nothing("every optimizer here may be sharded"),
    **each("zero_force_ds_cpu_optimizer optimizer.params.torch_adam", nothing("there is one Adam")),
    "fp16.auto_cast": nothing("inputs are token ids"),
    **each(
        "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save",
        nothing("checkpoints hold whole weights for any layout"),
        _ZERO,
    ),
    **each(_OF_SPEED, nothing("only speed changes"), _OPTIMIZER),
    **each(_OF_SPEED, nothing("only speed changes"), _WEIGHTS),
    **each(
        "allgather_partitions allgather_bucket_size reduce_scatter contiguous_gradients round_robin_gradients "
        "sub_group_size zero_hpz_partition_size stage3_prefetch_bucket_size stage3_param_persistence_threshold "
        "stage3_max_live_parameters stage3_max_reuse_distance",
        nothing("only memory and the order of communication change"),
        _ZERO,
    ),
}
"""Key -> its meaning, in arguments; for everything below a key without a deeper entry, too."""

BY_DEFAULT: dict[str, dict[str, Any]] = {
    "scheduler.type": {"scheduler.params.warmup_type": "log", "scheduler.params.warmup_num_steps": 1000},
    "fp16.enabled": {"fp16.initial_scale_power": 16},
}
"""Key -> {further key: value}: the values that DeepSpeed takes for further keys that are not written, where the first
key is and is not false."""
BEHIND_FLAGS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("", (), {"gradient_clipping": 0.0}),
    ("optimizer.type", tuple(OPTIMIZERS), {"optimizer.params.weight_decay": 0.0}),
    ("optimizer.type", ("SGD",), {"optimizer.params.momentum": 0.0}),
    (
        "optimizer.type",
        ("Muon",),
        {"optimizer.params.momentum": 0.95, "optimizer.params.betas": (0.9, 0.95), "optimizer.params.eps": 1e-10},
    ),
)
"""(Key, values of it, {further key: value}): the values that DeepSpeed then takes for further keys that are not
written; flags and other files win over them. "" as the key: in any case."""
NEEDED_BY = {(f"{_OPTIMIZER}device", "nvme"): f"{_OPTIMIZER}nvme_path"}
"""(Key, value) -> a further key that must then be there."""
_PROBES = {
    "optimizer.params.betas": (0.9, 0.999),
    "optimizer.type": "AdamW",
    "scheduler.type": "WarmupDecayLR",
    "scheduler.params.warmup_type": "linear",
    f"{_OPTIMIZER}device": "cpu",
    f"{_WEIGHTS}device": "cpu",
    f"{_OPTIMIZER}nvme_path": "",
    "communication_data_type": "fp32",
}
"""Key -> a value of its kind, where that is no number, to find out which arguments it fills."""


class Auto(NamedTuple):
    """A key whose value is `auto`, and the row of an argument that it so leaves to the flags; a key of several
    arguments has one for each."""

    key: str
    row: Flag


class DeepSpeed(NamedTuple):
    """The result of reading a file: its values as arguments, with those that written keys imply for others (`given`);
    the keys that it leaves to the flags (`autos`); findings; and further values that DeepSpeed takes for keys that are
    not written, over which flags and other files win (`defaults`)."""

    given: list[Given]
    autos: list[Auto]
    findings: list[Finding]
    defaults: list[Given]
    """Values that DeepSpeed takes for keys that are not written (`BEHIND_FLAGS`); flags and other files win over
    them."""

    @classmethod
    def empty(cls, *findings: Finding) -> "DeepSpeed":
        """The result for a file without values, with findings about it."""
        return cls([], [], list(findings), [])


def read(path: str) -> DeepSpeed:
    """The values of a file, the keys that it leaves to the flags, DeepSpeed's defaults, and findings: also about a file
    that cannot be read."""
    try:
        content = _loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = "give the path of an existing one"
        return DeepSpeed.empty(Finding("--deepspeed-config", path, "there is no such file", fix))
    except (OSError, ValueError) as error:
        return DeepSpeed.empty(Finding("--deepspeed-config", path, f"cannot be read: {error}", "mend the file"))
    if not isinstance(content, dict):
        rule = "must hold an object with keys and values"
        return DeepSpeed.empty(Finding("--deepspeed-config", path, rule, "mend the file"))
    said = DeepSpeed.empty()
    entries = dict(leaves(content, lambda key: key not in KEYS))
    unwritten = {key: value for about, keys in BY_DEFAULT.items() if entries.get(about) for key, value in keys.items()}
    for key, value in {**unwritten, **entries}.items():
        _read_key(key, value, entries, said, path)
    for (key, value), other in NEEDED_BY.items():
        if entries.get(key) == value and entries.get(other):
            said.given.extend([entry._replace(name=key) for entry in said.given if entry.name == other])
        elif entries.get(key) == value:
            said.findings.append(Finding(key, value, f"needs {other}", "add it", path))
    said.defaults.extend(_behind_flags(entries, path))
    return said


def _behind_flags(entries: Entries, path: str) -> Iterator[Given]:
    """The arguments of keys that are not written, by DeepSpeed's defaults (`BEHIND_FLAGS`)."""
    for about, values, keys in BEHIND_FLAGS:
        if not about or entries.get(about) in values:
            for key, value in keys.items():
                filled = {} if key in entries else KEYS[key](value, entries)
                assert not isinstance(filled, str), key
                yield from (Given(key, value, ROW_OF[name], source=path) for name, value in filled.items())


def _read_key(key: str, value: Any, entries: Entries, said: DeepSpeed, path: str) -> None:
    if key not in KEYS:
        said.findings.append(unknown(key, [*KEYS], path))
        return
    is_auto = value == "auto"
    try:
        meaning = _arguments(key, _PROBES.get(key, 1) if is_auto else value, entries)
    except (TypeError, OverflowError):
        said.findings.append(Finding(key, repr(value), "is not a value of this key", "change it", path))
    except ValueError as error:
        said.findings.append(Finding(key, repr(value), str(error), "change it", path))
    else:
        if isinstance(meaning, str):
            said.given.append(Given(key, value, source=path, reason=meaning))
        elif is_auto:
            said.autos.extend(Auto(key, ROW_OF[argument]) for argument in meaning)
        else:
            said.given.extend(Given(key, filled, ROW_OF[name], source=path) for name, filled in meaning.items())


def _arguments(key: str, value: Any, entries: Entries) -> Values | str:
    """The arguments that a key's value gives, or the reason why it does nothing. Raises ValueError for a wrong value,
    TypeError for true or null where a number must be, which Python would take for 1 or for not given."""
    meaning = KEYS[key](value, entries)
    for kind, filled in () if isinstance(meaning, str) else ((ROW_OF[name].type, v) for name, v in meaning.items()):
        if kind in (int, float) and (isinstance(value, bool) or value is None):
            raise TypeError(value)
        if kind is int and isinstance(filled, str):
            int(filled)
    return meaning


def resolved(autos: Sequence[Auto], config: AllConfig) -> tuple[list[str], list[Finding]]:
    """(A note for each `auto` with the value that its argument got, a finding for each whose argument has none; for
    --loss-scale None is a value)."""
    notes, findings = [], []
    for key, row in autos:
        value = attrgetter(row.target)(config)
        if row.target in PARTS_OF:
            value = value[PARTS_OF[row.target].index(row.dest)]
        may_be_none = row.dest == "loss_scale"
        if isinstance(value, Unknown) or (value is None and not may_be_none):
            findings.append(Finding(key, "auto", "nothing says it", f"give {row.name}"))
        else:
            notes.append(f"{key} auto: {row.name} {value}")
    return notes, findings
