"""Settings by path: "model_config.rope_scaling.factor" is a field of a section inside a section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from parallel_core.config import AllConfig, ModelConfig, MoEConfig, OptimizerConfig, ParallelConfig, TrainingConfig
from parallel_core.config.base import Config, has_type

SECTIONS: dict[str, type[Config]] = {"model_config": ModelConfig, "moe_config": MoEConfig}
"""The sections that say what a network is."""

_MISSING = object()


def get(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The setting at a path."""
    value: Any = settings
    for name in path.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    return default if value is _MISSING else value


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set the setting at a path."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def options(cls: type[Config], start: str) -> Iterator[tuple[str, str, Any]]:
    """(path, flag, annotated type) of every option of a section and of the sections inside it."""
    hints = get_type_hints(cls)
    for entry in fields(cls):
        if "flag" in entry.metadata:
            yield f"{start}.{entry.name}", entry.metadata["flag"], hints[entry.name]
        elif "sibling" not in entry.metadata and _is_section(hints[entry.name]):
            yield from options(hints[entry.name], f"{start}.{entry.name}")


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Config)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value may stand in a field of this type."""
    return value is not None and has_type(value, hint)


def config_of(settings: Mapping[str, Mapping[str, Any]]) -> AllConfig:
    """The configuration of a model's settings, on one process. Raises `ConfigError` if they do not go together."""
    sections = {name: _section(cls, settings.get(name, {})) for name, cls in SECTIONS.items()}
    return AllConfig(
        **sections,
        optimizer_config=OptimizerConfig(**settings.get("optimizer_config", {})),
        parallel_config=ParallelConfig(),
        training_config=TrainingConfig(),
    )


def _section(cls: type[Config], values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(cls)
    return cls(**{name: _section(hints[name], v) if isinstance(v, Mapping) else v for name, v in values.items()})
