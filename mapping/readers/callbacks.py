"""The meaning of callbacks and the training step (`runner_wrapper`) in files of MindFormers and MindSpeed-Core-MS."""

from collections.abc import Mapping
from typing import Any

from mapping.readers.meaning import Entries, Meaning, Values, each, nothing, part_meant, parts, repeats, to, words


def beside_fields(fields: Values, table: Mapping[str, Meaning]) -> Meaning:
    """The meaning of a callback that sets these fields, and whose keys, if it has any, have the meanings in `table`."""
    read = parts(table)

    def meaning(value: Any, entries: Entries) -> Values | str:
        found = read(value, entries)
        return fields if isinstance(found, str) else {**fields, **found}

    return meaning


_SUMMARY: dict[str, Meaning] = {
    "summary_dir": to("summary_dir"),
    "keep_default_action": nothing("moe_config.save_token_distribution says what is recorded"),
    **each("collect_freq collect_tensor_freq", to("summary_collect_freq")),
    "export_options": parts({"tensor_format": words({"npy": "it is the format"})}),
}


def _other_frequency(value: Any, entries: Entries) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number, at least 1")
    return "collect_tensor_freq counts"


def summary(value: Any, entries: Entries) -> Values | str:
    """The fields that the summary callback fills: folder and interval of recorded tensors; without keys the reason, a
    str, why it does nothing. `collect_tensor_freq`, if it has a value, takes the place of `collect_freq`. Raises
    ValueError as `parts`."""
    of_tensors = isinstance(value, Mapping) and value.get("collect_tensor_freq") is not None
    return parts({**_SUMMARY, "collect_freq": _other_frequency} if of_tensors else _SUMMARY)(value, entries)


_HOT_EXPERTS = parts(
    {
        "hidden_size": repeats("model_config.hidden_size"),
        "ffn_hidden_size": repeats("model_config.ffn_hidden_size"),
        "expert_parallel": repeats("expert_model_parallel_size"),
        "model_parallel": repeats("tensor_model_parallel_size"),
        "save_checkpoint_steps": nothing("hot experts are chosen anew before each checkpoint"),
    }
)


def hot_experts(value: Any, entries: Entries) -> Values | str:
    """The meaning of the hot-expert callback, which fills no field: demands that its keys of sizes repeat the
    config's; without keys the reason why it does nothing. Raises ValueError as `parts`."""
    return _HOT_EXPERTS(value, entries) if value else "moe_config.hot_expert_num says it"


CALLBACKS: dict[str, Meaning] = {
    "MoEDropRateCallback": beside_fields(
        {"moe_log_drop_rate": True},
        {
            "capacity_factor": to("moe_drop_rate_capacity_factor"),
            "expert_num": repeats("num_experts"),
            "num_layers": repeats("model_config.num_layers"),
            "mtp_depth": repeats("multi_token_prediction.num_layers"),
        },
    ),
    "SummaryMonitor": summary,
    "ColdHotExpertMonitor": hot_experts,
    "MFLossMonitor": parts({"per_print_times": to("log_interval")}),
    "ObsMonitor": nothing("checkpoints are written where output_dir says"),
    "CheckpointMonitor": parts(
        {
            "save_checkpoint_steps": to("save_interval"),
            "keep_checkpoint_max": to("keep_checkpoint_max"),
            "prefix": to("prefix"),
            "directory": to("output_dir"),
            "async_save": to("async_save"),
            **each(
                "integrated_save save_network_params save_trainable_params",
                nothing("checkpoints are whole, whatever the layout"),
            ),
        }
    ),
}
"""Callback by its `type` -> the meaning of its other keys."""


def callbacks(value: Any, entries: Entries) -> Values | str:
    """The fields that a list of callbacks, or a single one, fills, each by its type, of two that fill the same the
    later; for an empty list the reason, a str, why it does nothing. Raises ValueError for an unknown type, and as
    `part_meant`."""
    found: Values = {}
    listed = {f"[{number}]": entry for number, entry in enumerate(value)} if isinstance(value, list) else {"": value}
    for place, entry in listed.items():
        kind = entry.get("type") if isinstance(entry, Mapping) else entry
        if not isinstance(kind, str) or kind not in CALLBACKS:
            raise ValueError(f"knows {', '.join(CALLBACKS)}, not {kind}")
        options = {key: part for key, part in entry.items() if key != "type"} if isinstance(entry, Mapping) else {}
        found |= part_meant(place, _by_name(kind), options, entries)
    return found or "there is none"


def _by_name(kind: str) -> Meaning:
    """A callback's meaning, with its name in front of the reason where it does nothing."""

    def meaning(value: Any, entries: Entries) -> Values | str:
        found = CALLBACKS[kind](value, entries)
        return f"{kind}: {found}" if isinstance(found, str) else found

    return meaning


def _of_runner(entries: Entries, name: str, otherwise: Any) -> Any:
    keys = (f"runner_wrapper.{name}", name)
    return next((entries[key] for key in keys if entries.get(key) is not None), otherwise)


def use_clip_grad(value: Any, entries: Entries) -> Values:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return {"clip_grad": _of_runner(entries, "max_grad_norm", 1.0) if value else 0.0}


def max_grad_norm(value: Any, entries: Entries) -> Values | str:
    is_on = _of_runner(entries, "use_clip_grad", False)
    return {"clip_grad": value} if is_on else "gradients are not clipped: use_clip_grad is not true"


_SCALE, _FIXED_SCALE = "runner_wrapper.scale_sense", "FixedLossScaleUpdateCell"


def fixed_scale(value: Any, entries: Entries) -> Values:
    """The field loss_scale for a scaler of the fixed type, from the key loss_scale_value beside that type. Raises
    ValueError where that is missing, empty or 0."""
    if not entries.get(f"{_SCALE}.loss_scale_value"):
        raise ValueError("needs a loss_scale_value above 0")
    return {"loss_scale": entries[f"{_SCALE}.loss_scale_value"]}


def loss_scale_value(value: Any, entries: Entries) -> Values | str:
    """The field that loss_scale_value fills: loss_scale where the type beside it is FixedLossScaleUpdateCell, else
    loss_scale_value, the first value of a scaler that adapts."""
    return {"loss_scale" if entries.get(f"{_SCALE}.type") == _FIXED_SCALE else "loss_scale_value": value}


CLIPPING: dict[str, Meaning] = {"use_clip_grad": use_clip_grad, "max_grad_norm": max_grad_norm}
BY_DEFAULT: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("runner_wrapper.", "type", "max_grad_norm"), ("runner_wrapper.use_clip_grad", False))
}
"""Beginning of keys -> a key and its value, which holds if such keys are there and that key is not."""
RUNNER: dict[str, Meaning] = {
    "type": words({"MFTrainOneStepCell": "there is one training step; it clips gradients if use_clip_grad is true"}),
    "local_norm": to("log_local_norm"),
    **CLIPPING,
    "scale_sense.type": words(
        {
            "AdaptiveLossScaleUpdateCell": {"loss_scaler": "adaptive"},
            "DynamicLossScaleUpdateCell": {"loss_scaler": "dynamic", "loss_scale_hysteresis": 1},
            _FIXED_SCALE: fixed_scale,
        }
    ),
    "scale_sense.loss_scale_value": loss_scale_value,
    "scale_sense.scale_factor": to("loss_scale_factor"),
    "scale_sense.scale_window": to("loss_scale_window"),
    "scale_sense.max_scale_window": to("max_loss_scale_window"),
    "scale_sense.min_scale_window": to("min_loss_scale_window"),
}
