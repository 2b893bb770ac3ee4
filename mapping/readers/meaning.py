"""What a key of a file means, as data: the fields that it fills, or in a sentence why it does nothing.

A meaning is a function of the key's value and of all entries of the file. It raises ValueError, with the rule that the
value breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from mapping.given import Demand

Values = dict[str, Any]
"""Fields by the ends of their paths, and demands by what a key's name is followed by where they stand."""
Entries = Mapping[str, Any]
Meaning = Callable[[Any, Entries], Values | str]


def to(*targets: str) -> Meaning:
    """The value goes into these fields as it is."""
    return lambda value, entries: dict.fromkeys(targets, value)


def unless(target: str) -> Meaning:
    """The field is the value's opposite."""
    return lambda value, entries: {target: not value}


def words(table: Mapping[Any, Values | str | Meaning]) -> Meaning:
    """Each word has its own meaning; others are refused."""

    def read(value: Any, entries: Entries) -> Values | str:
        if not isinstance(value, str | int | float | bool) or value not in table:
            raise ValueError(f"must be one of {', '.join(map(str, table))}")
        meaning = table[value]
        return meaning(value, entries) if callable(meaning) else meaning

    return read


def equals(target: str, wanted: str, among: Collection[str]) -> Meaning:
    """The field says which of two or more words the value is: whether it is `wanted`."""
    return words({word: {target: word == wanted} for word in among})


def nothing(reason: str) -> Meaning:
    """The result is the same without the key."""
    return lambda value, entries: reason


def repeats(field: str) -> Meaning:
    """The value must be the field's."""

    def read(value: Any, entries: Entries) -> Values:
        return {"": Demand(value, field, lambda has: has == value, "the model has {}", "give the model's")}

    return read


def not_done(what: str, *off: Any, reason: str = "it asks for nothing") -> Meaning:
    """A feature that is out of scope; the values `off`, and an empty one, ask for nothing."""

    def read(value: Any, entries: Entries) -> Values | str:
        if value in (*off, False, None) or value in ([], {}, ""):
            return reason
        raise ValueError(f"{what} is not done; leave it out")

    return read


def parts(table: Mapping[str, Meaning]) -> Meaning:
    """A dictionary whose keys have meanings of their own."""

    def read(value: Any, entries: Entries) -> Values | str:
        if not isinstance(value, Mapping):
            raise ValueError(f"must have the keys {', '.join(table)}")
        found: Values = {}
        for key, part in value.items():
            if key not in table:
                raise ValueError(f"knows {', '.join(table)}, not {key}")
            meaning = {} if part is None else table[key](part, entries)
            found |= {} if isinstance(meaning, str) else within(f".{key}", meaning)
        return found or "its keys ask for nothing"

    return read


def within(place: str, values: Values) -> Values:
    """The values of a part of a key."""
    return {f"{place}{name}" if isinstance(value, Demand) else name: value for name, value in values.items()}
