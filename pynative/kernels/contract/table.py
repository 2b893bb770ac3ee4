"""Tables of operators by name."""

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import Any

Operator = Callable[..., Any]
Table = dict[str, Operator]


def modules(package: str, names: str) -> list[ModuleType]:
    """The modules of a package that are named, with blanks between."""
    return [import_module(f"{package}.{name}") for name in names.split()]


def written_in(module: ModuleType) -> Table:
    """The module's public functions by their names, without what it imports."""
    functions = ((name, f) for name, f in vars(module).items() if isfunction(f) and not name.startswith("_"))
    return {name: f for name, f in functions if f.__module__ == module.__name__}
