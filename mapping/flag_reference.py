"""The reference page of all flags, `docs/flags.md`: written from the table, with the sentences under config fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from mapping.flags import GROUPS, MAPPED, REFUSED, ROWS, Flag
from mapping.from_args import field_values
from parallel_core.command_line import command_line
from parallel_core.config.tree import FLAG_OF, OPTIONS, PUBLIC, SECTIONS
from parallel_core.config.unsupported import IMPLEMENTED, never_works, works

HEADER = """# Flags

Every command-line flag of Megatron-LM, MindSpeed and MindSpeed-LLM, and what becomes of it. Written by
`python -m mapping.explain --doc`; do not edit.

- **mapped**: it acts, with Megatron's meaning. *planned*: it, or what it is a part of, is not implemented yet, or
  the values that are named are not; the engine then refuses to start and names it.
- **ignored**: it cannot change the result.
- **refused**: an error, unless its default is given: it asks for something that is not done.
"""


def reference() -> str:
    """The whole page."""
    sentences = field_sentences()
    parts = [HEADER]
    for rows in filter(None, GROUPS):
        parts.append(f"\n## {rows[0].group}\n\n| flag | default | what becomes of it |\n| --- | --- | --- |\n")
        parts += [_line(row, sentences) for row in rows]
    return "".join(parts)


def help_text() -> str:
    """The flags that act, for a terminal."""
    page = "docs/flags.md: every flag of Megatron-LM, MindSpeed and MindSpeed-LLM, and what becomes of it"
    parser = command_line("Flags that act, with Megatron's meaning and defaults.", usage="%(prog)s FLAGS")
    parser.epilog = page
    sentences = field_sentences()
    for group in GROUPS:
        rows = [row for row in group if row.status == MAPPED]
        section = parser.add_argument_group(rows[0].group if rows else None)
        for row in rows:
            text = f"{_meaning(row, sentences)}{planned(row).replace('*', '')}".replace("%", "%%")
            section.add_argument(row.name, *row.aliases, default=row.default, help=text, **_notation(row))
    return parser.format_help()


_PLACEHOLDERS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _notation(row: Flag) -> dict[str, Any]:
    """How argparse says what a flag takes."""
    if row.type is None:
        return {"action": "store_true"}
    choices = [choice for choice in row.choices if choice not in row.refuses]
    word = f"{{{','.join(map(str, choices))}}}" if choices else _PLACEHOLDERS.get(row.type, row.type.__name__.upper())
    return {"metavar": word, "nargs": "+" if row.nargs == "1+" else row.nargs}


def _meaning(row: Flag, sentences: dict[str, str]) -> str:
    turns_off = row.type is None and row.stores is False and not row.help
    return row.help or ("Not: " if turns_off else "") + sentences.get(row.target, "")


def _line(row: Flag, sentences: dict[str, str]) -> str:
    names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
    default = "" if row.type is None or row.default is None else f"`{row.default}`"
    text = " ".join(_outcome(row, sentences)).replace("|", "\\|")
    return f"| {names} | {default} | {text} |\n"


def _outcome(row: Flag, sentences: dict[str, str]) -> Iterator[str]:
    if row.status == MAPPED:
        yield _meaning(row, sentences)
        if row.target:
            yield f"→ `{PUBLIC[row.target]}`{planned(row)}"
        elif row.choices:
            yield f"One of {', '.join(map(str, row.choices))}."
    else:
        yield f"**{row.status}**: {row.reason}."
    for value, sentence in row.stands_for.items():
        yield f"`{value}`: {sentence}."
    for value, reason in row.refuses.items():
        yield f"`{value}` is {REFUSED}: {reason}."


def planned(row: Flag) -> str:
    """What the page says of values that are not implemented yet: that none is, or which are not, or which are."""
    if row.target not in IMPLEMENTED:
        return " *(planned)*" if never_works(row.target) else ""
    choices = _choices(row)
    values = choices or list(_readable(row))
    missing = [value for value in values if not _works(row, value)]
    own = not choices and FLAG_OF[row.target] == row.name
    there = list(filter(None, IMPLEMENTED[row.target][1:])) if own else []
    if not missing:
        return ""
    if len(missing) < len(values) and choices:
        return f" *(planned: {', '.join(map(str, missing))})*"
    return f" *(planned, but for {', '.join(map(str, (row.default, *there)))})*" if there else " *(planned)*"


def _choices(row: Flag) -> list[Any]:
    """Values of a flag that can be counted: a switch's one, or the choices that are not refused."""
    if row.type is None:
        return [row.stores]
    choices = row.choices or OPTIONS[row.target].field.metadata["choices"]
    return [choice for choice in choices if choice not in row.refuses]


def _readable(row: Flag) -> Iterator[Any]:
    """Some values that the flag's reader takes."""
    for word in ("2", "3", "x"):
        with suppress(ValueError, SyntaxError):
            yield row.type(word) if row.type else None


def _works(row: Flag, value: Any) -> bool:
    """Whether the engine acts on what the field becomes when this flag alone is given."""
    given = Namespace(**{other.dest: other.default for other in ROWS if other.status == MAPPED} | {row.dest: value})
    found = field_values(given, look_at_files=False).get(row.target)
    asks_for_nothing = found is None or (row.type is None and found == IMPLEMENTED[row.target][0])
    return not never_works(row.target) if asks_for_nothing else works(row.target, found)


def field_sentences() -> dict[str, str]:
    """Target -> the sentence under the field, read from the config classes' sources."""
    return {f"{path}.{name}": text for path, cls in SECTIONS.items() for name, text in _sentences(cls)}


def _sentences(cls: Any) -> Iterator[tuple[str, str]]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
        ):
            yield field.target.id, " ".join(str(following.value.value).split())
