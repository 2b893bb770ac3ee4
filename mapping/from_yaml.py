"""Configs of configuration files alone, without a command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapping.given import Given
from mapping.merge import Sources, resolve
from mapping.readers import yaml_file
from mapping.readers.command_line import rank_of_environment, world_size_of_environment
from parallel_core.config import AllConfig, ConfigError
from parallel_core.findings import Finding


def init_configs_from_yaml(path: str | Path, world_size: int | None = None) -> AllConfig:
    """The config of a YAML file; see `init_configs_from_dict`."""
    return _config(*yaml_file.read(path), world_size)


def init_configs_from_dict(content: Mapping[str, Any], world_size: int | None = None) -> AllConfig:
    """The config of a dictionary in one of the three layouts, told apart by their top keys.

    `world_size`: processes of the job; by default what the launcher's environment says, else the fewest that hold the
    model. Raises `ConfigError` with every finding; an unknown key is one, with the nearest known names. Keys that do
    nothing are printed by rank 0.
    """
    return _config(*yaml_file.values_of(content, "the dictionary"), world_size)


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
