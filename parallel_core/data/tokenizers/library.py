"""Libraries that encode and decode: imported where they are first needed, and missed in words."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from parallel_core.findings import ConfigError, Finding

INSTALL = "pip install -e '.[tokenizers]'"


def missing_library(tokenizer_type: str, library: str | None) -> Finding | None:
    """The finding that the library which this type encodes with isn't installed."""
    if library is None or find_spec(library) is not None:
        return None
    install = "pip install transformers" if library == "transformers" else INSTALL
    return Finding("--tokenizer-type", tokenizer_type, f"encodes with the package {library}, not installed", install)


def library(tokenizer_type: str, name: str) -> ModuleType:
    """The package `name`. Raises ConfigError with the command that installs it."""
    finding = missing_library(tokenizer_type, name)
    if finding is not None:
        raise ConfigError([finding])
    return import_module(name)
