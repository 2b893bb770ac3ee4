"""Packages that only some files need."""

from importlib import import_module
from types import ModuleType


def package(name: str, extra: str, ending: str) -> ModuleType:
    """The package `name`. Raises ValueError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"--input: {ending} files need {name}: pip install -e '.[{extra}]'") from error
