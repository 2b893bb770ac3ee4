"""The reference page of all flags, `docs/flags.md`, and the text of --help: written from the table, with the sentences
under config fields."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from mapping.flags import GROUPS, MAPPED, REFUSED, Flag
from parallel_core.config.tree import PUBLIC, SECTIONS
from parallel_core.system.command_line import command_line

HEADER = """# Flags

Every command-line flag of Megatron-LM, MindSpeed and MindSpeed-LLM, and what becomes of it. Written by
`python -m mapping explain --doc`; do not edit.

- **mapped**: it acts, with Megatron's meaning.
- **ignored**: it cannot change the result.
- **refused**: an error, unless its default is given: it asks for something that is not done.
"""


def reference() -> str:
    """The Markdown text of the reference page: every flag, the default of its value, if any, and what becomes of it."""
    sentences = field_sentences()
    parts = [HEADER]
    for rows in filter(None, GROUPS):
        parts.append(f"\n## {rows[0].group}\n\n| flag | default | what becomes of it |\n| --- | --- | --- |\n")
        parts += [_line(row, sentences) for row in rows]
    return "".join(parts)


def help_text() -> str:
    """The text of --help: the flags that act."""
    page = "docs/flags.md: every flag of Megatron-LM, MindSpeed and MindSpeed-LLM, and what becomes of it"
    parser = command_line("Flags that act, with Megatron's meaning and defaults.", usage="%(prog)s FLAGS")
    parser.epilog = page
    sentences = field_sentences()
    for group in GROUPS:
        rows = [row for row in group if row.status == MAPPED]
        section = parser.add_argument_group(rows[0].group if rows else None)
        for row in rows:
            text = _meaning(row, sentences).replace("%", "%%")
            section.add_argument(row.name, *row.aliases, default=row.default, help=text, **_notation(row))
    return parser.format_help()


_PLACEHOLDERS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _notation(row: Flag) -> dict[str, Any]:
    """A flag's values as arguments of argparse's `add_argument`."""
    if row.type is None:
        return {"action": "store_true"}
    choices = [choice for choice in row.choices if choice not in row.refuses]
    word = f"{{{','.join(map(str, choices))}}}" if choices else _PLACEHOLDERS.get(row.type, row.type.__name__.upper())
    return {"metavar": word, "nargs": "+" if row.nargs == "1+" else row.nargs}


def _meaning(row: Flag, sentences: dict[str, str]) -> str:
    turns_off = row.type is None and row.stores is False and not row.help
    return row.help or ("Switch off: " if turns_off else "") + sentences.get(row.target, "")


def _line(row: Flag, sentences: dict[str, str]) -> str:
    names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
    default = "" if row.type is None or row.default is None else f"`{row.default}`"
    text = " ".join(_outcome(row, sentences)).replace("|", "\\|")
    return f"| {names} | {default} | {text} |\n"


def _outcome(row: Flag, sentences: dict[str, str]) -> Iterator[str]:
    if row.status == MAPPED:
        yield _meaning(row, sentences)
        if row.target:
            yield f"→ `{PUBLIC[row.target]}`"
        elif row.choices:
            yield f"One of {', '.join(map(str, row.choices))}."
    else:
        yield f"**{row.status}**: {row.reason}."
    for value, sentence in row.stands_for.items():
        yield f"`{value}`: {sentence}."
    for reason in dict.fromkeys(row.refuses.values()):
        values = [f"`{value}`" for value, its in row.refuses.items() if its == reason]
        yield f"{', '.join(values)} {'is' if len(values) == 1 else 'are'} {REFUSED}: {reason}."


def field_sentences() -> dict[str, str]:
    """Path of a config field -> the text under it, in one line, read from the config classes' sources; without fields
    that have none."""
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
