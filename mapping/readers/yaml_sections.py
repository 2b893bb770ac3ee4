"""The layout of configuration files that names our sections and their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapping.derived import DERIVED
from mapping.flags import MAPPED, ROWS, Flag
from mapping.given import Given
from mapping.readers.command_line import taken
from mapping.readers.keys import leaves, nearest, unknown
from parallel_core.config.base import has_type, type_name
from parallel_core.config.tree import FLAG_OF, OPTIONS, SECTIONS, SHOWN
from parallel_core.findings import Finding


def _is_copied(row: Flag) -> bool:
    """Whether a value of the flag is one of its field, for fields that are derived only if the flag is their own."""
    own = row.type in (int, str) and FLAG_OF.get(row.target) == row.name
    return row.status == MAPPED and bool(row.target) and (own or row.target not in DERIVED)


_NAMES = {path: path for path in OPTIONS} | SHOWN
"""Key -> path. Megatron's names are taken beside the fields'; either in the field's section or in the one around it."""
for _path, _name in (
    *((path, path.rpartition(".")[2]) for path in OPTIONS),
    *((row.target, row.dest) for row in ROWS if _is_copied(row)),
):
    for _section in (_path.rpartition(".")[0], _path.partition(".")[0]):
        _NAMES.setdefault(f"{_section}.{_name}", _path)


def read(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary, and what is wrong with it; a key without a value says nothing."""
    given, findings = [], []
    for key, value in leaves(content, lambda path: path in SECTIONS):
        if key not in _NAMES:
            findings.append(_unknown(key, source))
        elif value is not None:
            try:
                given.append(Given(key, coerced(_NAMES[key], value), field=_NAMES[key], source=source))
            except ValueError:
                findings.append(wrong_type(key, value, _NAMES[key], source))
    return given, findings


def wrong_type(key: str, value: Any, path: str, source: str) -> Finding:
    return Finding(key, repr(value), f"must be of type {type_name(OPTIONS[path].type)}", "change it", source)


def _unknown(key: str, source: str) -> Finding:
    """With names like this one in its section, else anywhere."""
    section, _, name = key.rpartition(".")
    near = nearest(name, [known.rpartition(".")[2] for known in _NAMES if known.rpartition(".")[0] == section])
    if not near:
        return unknown(key, [*_NAMES], source)
    fix = f"did you mean {', '.join(f'{section}.{found}' for found in near)}?"
    return Finding(key, None, "there is no such key", fix, source)


def coerced(path: str, value: Any) -> Any:
    """`value` in the type of its field: YAML reads 1e-5 as text, and has no tuples. Raises ValueError."""
    kind = OPTIONS[path].type
    row = next((row for row in ROWS if row.target == path), None)
    has_notation = row is not None and row.type not in (None, int, float, str)
    if row is not None and isinstance(value, str) and (has_notation or not has_type(value, kind)):
        value = taken(row, value)
    if isinstance(value, list) and has_type((), kind):
        value = tuple(value)
    if not has_type(value, kind):
        raise ValueError(value)
    return value
