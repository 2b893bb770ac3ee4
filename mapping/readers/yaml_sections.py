"""The layout of configuration files in which sections and their fields have the configuration's names."""

from collections.abc import Iterator, Mapping
from typing import Any

from mapping.derive.fields import DERIVED
from mapping.flags import ROWS, Flag
from mapping.given import PARTS_OF, ROW_OF, Demand, Given
from mapping.readers.callbacks import BY_DEFAULT
from mapping.readers.command_line import Unreadable, taken
from mapping.readers.earlier_keys import EARLIER
from mapping.readers.meaning import Meaning, Placed, Said, WrongPart, nearest, to, unknown
from parallel_core.config.base import has_type, type_name
from parallel_core.config.serialise import leaves
from parallel_core.config.tree import FLAG_OF, OPTIONS, SECTIONS, SHOWN, path_of
from parallel_core.findings import Finding
from parallel_core.no_effect.row import ALWAYS


def _is_copied(row: Flag) -> bool:
    """Whether a value of the flag is a value of its field: the field is copied from it, or the flag is the field's
    own."""
    own = row.type in (int, str) and FLAG_OF.get(row.target) == row.name
    return bool(row.target) and (own or row.target not in DERIVED)


_NAMES = {path: path for path in OPTIONS} | SHOWN
"""Key -> path of a field. Beside fields' names Megatron's are taken, in the field's section or in the one around it."""
for _path, _name in (
    *((path, path.rpartition(".")[2]) for path in OPTIONS),
    *((row.target, row.dest) for row in ROWS if _is_copied(row)),
):
    for _section in (_path.rpartition(".")[0], _path.partition(".")[0]):
        _NAMES.setdefault(f"{_section}.{_name}", _path)


def read(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary in this layout, and findings about it; a known key without a value gives
    none of its own. source: the name of the dictionary, or of its file, in messages."""
    return read_entries(dict(leaves(_outside(content), lambda path: path in _GROUPS and path not in EARLIER)), source)


def _outside(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dictionary with the keys below `model` (model_config, arch) beside its other keys."""
    model = content.get("model")
    if not isinstance(model, Mapping):
        return content
    return {**{key: value for key, value in content.items() if key != "model"}, **model}


_GROUPS = {*SECTIONS, *(key.rpartition(".")[0] for key in EARLIER)}


def read_entries(entries: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values, and findings, of a dictionary in this layout, given as path -> value; some keys of MindFormers also
    give values, as defaults, for others of its keys that are not written. source: as in `read`."""
    given = [*_unwritten(entries, source)]
    findings: list[Finding] = []
    for key, value in entries.items():
        if key in EARLIER or key in _NAMES:
            meaning = EARLIER.get(key) or to(_NAMES[key])
            found, wrong = meant(key, meaning, value, entries, source)
            given += found
            findings += wrong
        elif key not in _GROUPS:
            findings.append(_unknown(key, source))
        elif value is not None:
            findings.append(
                Finding(key, shown_value(value), "must hold keys with values", "write them below it", source)
            )
    return given, findings


def _unwritten(entries: Mapping[str, Any], source: str) -> Iterator[Given]:
    """The values that keys of MindFormers imply for other keys that are not written, as defaults: a key that fills the
    same field counts."""
    unwritten = {more for start, more in BY_DEFAULT.items() if any(key.startswith(start) for key in entries)}
    names = {key.rpartition(".")[2] for key, value in entries.items() if value is not None}
    for key, value in unwritten:
        if key.rpartition(".")[2] not in names:
            found, _ = meant(key, EARLIER[key], value, entries, source)
            yield from (entry._replace(is_default=True) for entry in found)


def meant(
    key: str, meaning: Meaning, value: Any, entries: Mapping[str, Any], source: str
) -> tuple[list[Given], list[Finding]]:
    """The values that a key's meaning gives for `value`, and findings about them; nothing for None and an empty text.
    entries: all of the file, which the meaning may read, too; source: as in `read`."""
    if value is None or value == "":
        return [], []
    try:
        fields = meaning(value, entries)
    except WrongPart as error:
        return [], [Finding(f"{key}{error.place}", shown_value(error.value), str(error), "change it", source)]
    except ValueError as error:
        return [], [Finding(key, shown_value(value), str(error), "change it", source)]
    if isinstance(fields, str):
        return [Given(key, value, source=source, reason=fields)], []
    given, findings = [], []
    for name, filled in fields.items():
        if isinstance(filled, Demand):
            given.append(Given(f"{key}{name}", filled.value, source=source, demand=filled))
            continue
        if isinstance(filled, Said):
            given.append(Given(f"{key}{name}", filled.value, source=source, reason=filled.reason))
            continue
        path = path_of(name)
        part, place = filled if isinstance(filled, Placed) else (filled, "")
        try:
            made = Given(f"{key}{place}", coerced(path, part), field=path, source=source, reason=ALWAYS.get(path, ""))
            made = made._replace(is_default=part is value and made.value == OPTIONS[path].default)
            given += [made] if path not in PARTS_OF else _in_parts(made)
        except ValueError as error:
            findings.append(_wrong(f"{key}{place}", part, path, source, error))
    return given, findings


def _in_parts(whole: Given) -> list[Given]:
    """The value of a field that several arguments make, as a value for each argument. Raises Unreadable if it has
    another number of parts."""
    rows = [ROW_OF[name] for name in PARTS_OF[whole.field]]
    if len(whole.value) != len(rows):
        raise Unreadable(str(whole.value), f"must be {len(rows)} numbers")
    parts = zip(whole.value, rows, strict=True)
    return [whole._replace(value=taken(row, part), row=row, field="") for part, row in parts]


def shown_value(value: Any) -> Any:
    """A value as a message shows it: text and numbers as they are, anything else as Python writes it."""
    return value if isinstance(value, str | int | float) else repr(value)


def wrong_type(key: str, value: Any, path: str, source: str) -> Finding:
    wanted = OPTIONS[path].type
    rule = (
        "must be true, false, a list, or patterns with lists"
        if wanted is Any
        else f"must be of type {type_name(wanted)}"
    )
    return Finding(key, repr(value), rule, "change it", source)


def _wrong(key: str, value: Any, path: str, source: str, error: ValueError) -> Finding:
    """The finding about a value that a field cannot have: with the rule of the flag's reader, or of the field's type
    where it takes values that no command line can give."""
    wrong = wrong_type(key, value, path, source)
    has_rule = isinstance(error, Unreadable) and OPTIONS[path].type is not Any
    return wrong._replace(rule=str(error)) if has_rule else wrong


def _unknown(key: str, source: str) -> Finding:
    """The finding about an unknown key, with names like it in its section, else anywhere."""
    section, _, name = key.rpartition(".")
    near = nearest(name, [known.rpartition(".")[2] for known in _NAMES if known.rpartition(".")[0] == section])
    if not near:
        return unknown(key, [*_NAMES], source)
    fix = f"did you mean {', '.join(f'{section}.{found}' for found in near)}?"
    return unknown(key, [], source)._replace(fix=fix)


def coerced(path: str, value: Any) -> Any:
    """`value` as a field at a path may have it, by its type: YAML reads 1e-5 as text, and has no tuples. Raises
    ValueError for a value of another type, and for text that the reader of the field's flag refuses."""
    kind = OPTIONS[path].type
    row = next((row for row in ROWS if row.target == path), None)
    has_notation = row is not None and row.type not in (None, int, float, str)
    if row is not None and isinstance(value, str) and (has_notation or not has_type(value, kind)):
        value = taken(row, value)
    if isinstance(value, list) and has_type((), kind):
        number = row.type if row is not None and row.type in (int, float) else None
        value = tuple(number(entry) if number and isinstance(entry, str) else entry for entry in value)
    if not has_type(value, kind):
        raise ValueError(value)
    return value
