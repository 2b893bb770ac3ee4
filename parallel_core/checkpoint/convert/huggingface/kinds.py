"""Kinds of rows in a family's table of settings: a setting that one key gives (`Field`), settings that are computed
(`Group`), a key that must have one of some values (`Must`)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REQUIRED = object()
"""The default of a key that must be there, because no value can be assumed."""

Settings = dict[str, Any]
"""Path of our option -> value."""


def _same(value: Any) -> Any:
    return value


class Field(NamedTuple):
    """One setting of ours, `path`, that one key of config.json gives, under any of its spellings (`key`, `also`); None
    is written as null. default: the value in config.json that a missing key or null stands for."""

    path: str
    key: str
    default: Any = REQUIRED
    """The value in config.json that a missing key or null stands for."""
    to_ours: Callable[[Any], Any] = _same
    to_theirs: Callable[[Any], Any] = _same
    also: tuple[str, ...] = ()
    """Other spellings of the key, which are read, too."""

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """The value in config.json under the first spelling of the key that has one other than null; None if none
        has."""
        return next((config[key] for key in (self.key, *self.also) if config.get(key) is not None), None)


class Group(NamedTuple):
    """Settings that functions compute from config.json, any number from any number of keys. to_ours: from the entries
    of config.json under `keys` to these settings; to_theirs: from our settings to the entries that are written."""

    keys: tuple[str, ...]
    """All keys that `to_ours` may read."""
    to_ours: Callable[[Mapping[str, Any]], Settings]
    to_theirs: Callable[[Settings], Mapping[str, Any]]


class Must(NamedTuple):
    """A key of config.json that, if it is there, must have one of `values`, the first of which is written; null is
    refused as any other value that is not among them."""

    key: str
    values: tuple[Any, ...]
    """The values that are accepted, the first of which is written."""


AnyField = Field | Group | Must


def always(path: str, value: Any) -> Group:
    """The row for a setting that is read as `value` whatever config.json says, and for which no key is written."""
    return Group((), lambda _: {path: value}, lambda _: {})


def keys_of(field: AnyField) -> tuple[str, ...]:
    """The keys of config.json that a row may read, other spellings included."""
    if isinstance(field, Group):
        return field.keys
    return (field.key, *field.also) if isinstance(field, Field) else (field.key,)
