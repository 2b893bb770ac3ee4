"""Configs of configuration files alone, without a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mapping.given import Given
from mapping.merge import Sources, resolve
from mapping.readers import yaml_file
from mapping.readers.command_line import rank_of_environment, world_size_of_environment
from parallel_core.config import AllConfig, ConfigError
from parallel_core.config.tree import SECTIONS
from parallel_core.findings import Finding


def init_configs_from_yaml(
    path: str | Path, config_classes: Iterable[type] | None = None, *, world_size: int | None = None
) -> AllConfig:
    """The config of a YAML file; see `init_configs_from_dict`."""
    check_config_classes(config_classes)
    return _config(*yaml_file.read(path), world_size)


def init_configs_from_dict(
    content: Mapping[str, Any], config_classes: Iterable[type] | None = None, *, world_size: int | None = None
) -> AllConfig:
    """The config of a dictionary in one of the three layouts, told apart by their top keys.

    The result has every section, whichever `config_classes` asks for; a class that is no section's is refused.
    `world_size`: processes of the job; by default what the launcher's environment says, else the fewest that hold the
    model. Raises `ConfigError` with every finding; an unknown key is one, with the nearest known names. Keys that do
    nothing are printed by rank 0.
    """
    check_config_classes(config_classes)
    return _config(*yaml_file.values_of(content, "the dictionary"), world_size)


def check_config_classes(config_classes: Iterable[type] | None) -> None:
    """ValueError for a class that is no section of ours, since nothing would fill it."""
    for asked in config_classes or ():
        if asked not in SECTIONS.values():
            known = ", ".join(sorted({kind.__name__ for path, kind in SECTIONS.items() if "." not in path}))
            raise ValueError(f"config_classes: {asked!r} is no section of the configuration; they are {known}")


def _config(given: list[Given], findings: list[Finding], world_size: int | None) -> AllConfig:
    reading = resolve(
        Sources(
            yaml=given,
            findings=findings,
            world_size=world_size or world_size_of_environment(),
            rank=rank_of_environment(),
            is_a_file=True,
        )
    )
    if reading.findings:
        raise ConfigError(reading.findings)
    reading.print_notes()
    return reading.config
