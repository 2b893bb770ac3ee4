"""Callbacks of the earlier systems' files, as data: what each means here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapping.readers.meaning import Entries, Meaning, Values, nothing, part_meant, parts, repeats, to, words


def beside_fields(fields: Values, table: Mapping[str, Meaning]) -> Meaning:
    """These fields, and what the keys mean."""
    read = parts(table)

    def meaning(value: Any, entries: Entries) -> Values | str:
        found = read(value, entries)
        return fields if isinstance(found, str) else {**fields, **found}

    return meaning


_SUMMARY: dict[str, Meaning] = {
    "summary_dir": to("summary_dir"),
    "keep_default_action": nothing("moe_config.save_token_distribution says what is recorded"),
    **dict.fromkeys(("collect_freq", "collect_tensor_freq"), to("summary_collect_freq")),
    "export_options": parts({"tensor_format": words({"npy": "it is the format"})}),
}


def _other_frequency(value: Any, entries: Entries) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number, at least 1")
    return "collect_tensor_freq counts"


def summary(value: Any, entries: Entries) -> Values | str:
    """Where and how often tensors are recorded: `collect_tensor_freq` goes before `collect_freq`."""
    of_tensors = isinstance(value, Mapping) and value.get("collect_tensor_freq") is not None
    return parts({**_SUMMARY, "collect_freq": _other_frequency} if of_tensors else _SUMMARY)(value, entries)


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
    "ColdHotExpertMonitor": nothing("moe_config.hot_expert_num says it"),
    "MFLossMonitor": parts({"per_print_times": to("log_interval")}),
    "ObsMonitor": nothing("checkpoints are written where output_dir says"),
    "CheckpointMonitor": parts(
        {
            "save_checkpoint_steps": to("save_interval"),
            "keep_checkpoint_max": to("keep_checkpoint_max"),
            "prefix": to("prefix"),
            "directory": to("output_dir"),
            "async_save": to("async_save"),
            **dict.fromkeys(
                ("integrated_save", "save_network_params", "save_trainable_params"),
                nothing("checkpoints are whole, whatever the layout"),
            ),
        }
    ),
}
"""Callback by its `type` -> what its other keys mean."""


def callbacks(value: Any, entries: Entries) -> Values | str:
    """A list of callbacks by type."""
    found: Values = {}
    listed = {f"[{number}]": entry for number, entry in enumerate(value)} if isinstance(value, list) else {"": value}
    for place, entry in listed.items():
        kind = entry.get("type") if isinstance(entry, Mapping) else entry
        if kind not in CALLBACKS:
            raise ValueError(f"knows {', '.join(CALLBACKS)}, not {kind}")
        options = {key: part for key, part in entry.items() if key != "type"} if isinstance(entry, Mapping) else {}
        found |= part_meant(place, _by_name(kind), options, entries)
    return found or "there is none"


def _by_name(kind: str) -> Meaning:
    """A callback's meaning, with its name before the reason why it does nothing."""

    def meaning(value: Any, entries: Entries) -> Values | str:
        found = CALLBACKS[kind](value, entries)
        return f"{kind}: {found}" if isinstance(found, str) else found

    return meaning
