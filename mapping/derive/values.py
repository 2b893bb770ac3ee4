"""The values of config fields from arguments: those in `DERIVED` are derived, others copied from the argument of a
flag."""

from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mapping.derive.fields import DERIVED
from mapping.flags import ROWS, Flag
from mapping.given import OTHER_NAMES
from parallel_core.config.base import Unjudged, Unknown

COPIED = tuple(row for row in ROWS if row.target and row.target not in DERIVED)
"""Rows of flags whose value is their field's value."""

_NAMES_ELSEWHERE = {dest: other for other, dest in OTHER_NAMES.items()}


class _Reader:
    """A namespace as derivations read it: an argument that it does not have is None."""

    def __init__(self, args: Namespace, look_at_files: bool, given: Collection[str]) -> None:
        self._args = args
        self.look_at_files = look_at_files
        self.given = given

    def __getattr__(self, name: str) -> Any:
        return _value_of(vars(self._args), name)


def _value_of(args: Mapping[str, Any], name: str) -> Any:
    return args[name] if name in args else args.get(_NAMES_ELSEWHERE.get(name, ""))


def field_values(args: Namespace, look_at_files: bool = True, given: Collection[str] = ()) -> dict[str, Any]:
    """Path -> value, for every config field that the arguments, or the tokenizer's files, give a value.

    look_at_files: whether the tokenizer's files may be read. given: names of the arguments that were given, as far as
    that is known. A field whose value cannot be told is `Unknown`. Of several arguments that are copied to one field,
    the last in `COPIED` that is not at its default counts. A text that a flag's reader cannot read raises the reader's
    error, a ValueError for most.
    """
    reader = _Reader(args, look_at_files, given)
    values = _copied(vars(args)) | {path: _derived(derive, reader) for path, derive in DERIVED.items()}
    return {path: value for path, value in values.items() if value is not None}


def _copied(args: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value of the fields that are copied from an argument. If several arguments fill one field, the one that
    is not at its default counts."""
    values: dict[str, Any] = {}
    for row in COPIED:
        value = _value_of(args, row.dest)
        if isinstance(value, str):
            value = _typed(row, value)
        if row.target not in values or isinstance(value, Unknown) or (value is not None and value != row.default):
            values[row.target] = value
    return values


def _typed(row: Flag, text: str) -> Any:
    """The text of a row's argument in the row's type: other parsers keep lists, dictionaries and types as they were
    typed."""
    return text if row.type in (None, str) else row.type(text)


def _derived(derive: Callable[[Any], Any], reader: _Reader) -> Any:
    try:
        return derive(reader)
    except Unjudged:
        return Unknown()
