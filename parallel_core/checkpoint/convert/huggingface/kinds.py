"""A row of a family's settings: our path, the key in config.json, and how a value changes between them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REQUIRED = object()
"""A key that must be there: nobody knows its value otherwise."""

Settings = dict[str, Any]
"""Our settings by path."""


def _same(value: Any) -> Any:
    return value


class Field(NamedTuple):
    """One setting."""

    path: str
    key: str
    default: Any = REQUIRED
    """The value if the key is missing or null."""
    to_ours: Callable[[Any], Any] = _same
    to_theirs: Callable[[Any], Any] = _same
    also: tuple[str, ...] = ()
    """Other spellings of the key, which are read."""

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """The value in config.json under any of the spellings; none: it has none."""
        return next((config[key] for key in (self.key, *self.also) if config.get(key) is not None), None)


class Group(NamedTuple):
    """Settings that several keys say together."""

    keys: tuple[str, ...]
    """All that it reads."""
    to_ours: Callable[[Mapping[str, Any]], Settings]
    to_theirs: Callable[[Settings], Mapping[str, Any]]


class Must(NamedTuple):
    """A key of config.json that must have one of these values: others describe networks that are not supported."""

    key: str
    values: tuple[Any, ...]
    """The first is written."""


AnyField = Field | Group | Must


def always(path: str, value: Any) -> Group:
    """A setting of all models of a family, of which config.json says nothing."""
    return Group((), lambda _: {path: value}, lambda _: {})


def keys_of(field: AnyField) -> tuple[str, ...]:
    """The keys that it reads."""
    if isinstance(field, Group):
        return field.keys
    return (field.key, *field.also) if isinstance(field, Field) else (field.key,)
