"""Tables of operators: name -> function."""

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import Any

Operator = Callable[..., Any]
Table = dict[str, Operator]


def modules(package: str, names: str) -> list[ModuleType]:
    """The modules of `package` with these names, which are separated by blanks."""
    return [import_module(f"{package}.{name}") for name in names.split()]


def written_in(module: ModuleType) -> Table:
    """Name -> function, of a module's public plain functions (`inspect.isfunction`: not of those that `lru_cache`
    wraps), without those that it imports."""
    functions = ((name, f) for name, f in vars(module).items() if isfunction(f) and not name.startswith("_"))
    return {name: f for name, f in functions if f.__module__ == module.__name__}
