"""From an argument namespace to config objects: fields with a flag of their own are copied, the others derived."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from mapping.derived import DERIVED
from mapping.flags import MAPPED, ROWS, Flag
from parallel_core.config import (
    AllConfig,
    ConfigError,
    DatasetConfig,
    LoraConfig,
    ModelConfig,
    MoEConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
)
from parallel_core.config.base import Config, Unjudged, Unknown, complain, gather_errors

SECTIONS: dict[str, type[Config]] = {
    "training_config": TrainingConfig,
    "optimizer_config": OptimizerConfig,
    "parallel_config": ParallelConfig,
    "dataset_config": DatasetConfig,
    "moe_config": MoEConfig,
    "lora_config": LoraConfig,
    "model_config": ModelConfig,
}
"""The sections of an `AllConfig`, by name."""

NESTED: dict[str, Any] = {
    f"{name}.{entry.name}": entry.default_factory
    for name, cls in SECTIONS.items()
    for entry in fields(cls)
    if isinstance(entry.default_factory, type) and issubclass(entry.default_factory, Config)
}
"""Sections within sections, by path."""

FLAG_OF: dict[str, str] = {
    f"{path}.{entry.name}": entry.metadata["flag"]
    for path, cls in {**SECTIONS, **NESTED}.items()
    for entry in fields(cls)
    if "flag" in entry.metadata
}
"""Config field -> the flag that errors about it name."""

OTHER_NAMES = {
    "norm_epsilon": "layernorm_epsilon",
    "apply_layernorm_1p": "layernorm_zero_centered_gamma",
    "ddp_bucket_size": "bucket_size",
    "profile_with_memory": "profile_memory",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size_ms",
}
"""Arguments that other parsers keep under another name than their flag's."""


class Arguments:
    """Reads a namespace; an argument that it does not have is none."""

    def __init__(self, args: Namespace, look_at_files: bool) -> None:
        self._args = args
        self.look_at_files = look_at_files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name, getattr(self._args, OTHER_NAMES.get(name, ""), None))


def copied(reader: Arguments) -> dict[str, Any]:
    """Target -> value of its own flag. Where several names fill one field, the one that was changed counts."""
    values: dict[str, Any] = {}
    for row in ROWS:
        if row.status == MAPPED and row.target and row.target not in DERIVED:
            value = _typed(row, getattr(reader, row.dest))
            if row.target not in values or isinstance(value, Unknown) or (value is not None and value != row.default):
                values[row.target] = value
    return values


def _typed(row: Flag, value: Any) -> Any:
    """Other parsers keep lists, dictionaries and types as they were typed."""
    return row.type(value) if isinstance(value, str) and row.type not in (None, str) else value


def field_values(args: Namespace, look_at_files: bool = True) -> dict[str, Any]:
    """Target -> value, for every config field that the arguments, and a tokenizer's files, say something of.

    A configuration file's fields that no single argument fills stand in the namespace as `said_by_files`.
    """
    reader = Arguments(args, look_at_files)
    values = copied(reader) | {target: _derived(derive, reader) for target, derive in DERIVED.items()}
    known = {target: value for target, value in values.items() if value is not None}
    return known | (reader.said_by_files or {})


def _derived(derive: Callable[[Any], Any], reader: Arguments) -> Any:
    try:
        return derive(reader)
    except Unjudged:
        return Unknown()


def build(values: dict[str, Any]) -> AllConfig:
    """The config of the given target -> value, which must name every field without a default."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, *NESTED)}
    for target, value in values.items():
        section, _, name = target.rpartition(".")
        sections[section][name] = value
    for path, cls in NESTED.items():
        section, _, name = path.rpartition(".")
        sections[section][name] = cls(**sections[path])
    for name, value in missing_fields(sections["model_config"]):
        sections["model_config"][name] = value
    built: dict[str, Any] = {name: cls(**sections[name]) for name, cls in SECTIONS.items()}
    return AllConfig(**built)


def missing_fields(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Complains of what a model cannot do without, and stands in for it so that the other rules still speak."""
    for entry in fields(ModelConfig):
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in given:
            flag = entry.metadata["flag"]
            complain(
                [
                    f"{flag}: must be given"
                    if entry.name != "vocab_size"
                    else "--vocab-size: must be given, or a tokenizer whose files say it"
                ]
            )
            yield entry.name, Unknown()


def build_with_errors(values: dict[str, Any]) -> tuple[AllConfig, list[str]]:
    """The config and everything that is wrong with it."""
    with gather_errors() as errors:
        config = build(values)
    return config, errors


def init_configs_from_args(args: Namespace) -> AllConfig:
    """The config of an argument namespace, ours or one of Megatron's own parser; the namespace is left as it is.

    Raises `ConfigError` (a `ValueError`) with every finding.
    """
    config, errors = build_with_errors(field_values(args))
    if errors:
        raise ConfigError(errors)
    return config
