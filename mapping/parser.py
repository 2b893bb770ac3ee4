"""From a command line to an argument namespace, by the flag table. All errors are gathered, none ends the scan.

Unlike argparse it never takes an abbreviation, and it knows every flag's arity without a parser having to be built.
"""

from __future__ import annotations

import difflib
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mapping.flags import BY_NAME, ROWS, Flag
from parallel_core.config.base import Unknown

ExtraArgs = Callable[[ArgumentParser], Any]


class Given(NamedTuple):
    """A flag as it was typed, with the value that was read from its words."""

    name: str
    row: Flag
    value: Any


@dataclass
class CommandLine:
    """What a scan found."""

    given: list[Given] = field(default_factory=list)
    unread: list[Flag] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def scan(argv: Sequence[str], extra_options: Mapping[str, Any] | None = None) -> CommandLine:
    """Read `argv` by the table; the words of `extra_options` are set aside as `.extra`."""
    line = CommandLine()
    for name, inline, words in _clauses(argv):
        if extra_options and name in extra_options:
            line.extra += [f"{name}={inline}" if inline is not None else name, *words]
        elif name in BY_NAME:
            _read(line, name, BY_NAME[name], words if inline is None else [inline, *words])
        elif _is_flag(name):
            line.errors.append(f"{name}: there is no such flag{suggest(name, [*BY_NAME, *(extra_options or ())])}")
        else:
            line.errors.append(f"{name}: a value without a flag before it; remove it")
    return line


def suggest(name: str, known: Sequence[str]) -> str:
    """`; did you mean a, b?` with the nearest known names, or the advice to remove it."""
    near = nearest(name, known)
    return f"; did you mean {', '.join(near)}?" if near else "; remove it"


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Known names that begin with this one, then those that are written much alike."""
    name = f"--{name.lstrip('-')}" if name.startswith("-") else name
    longer = [full for full in known if full.startswith(name)]
    return [*dict.fromkeys((*longer[:3], *difflib.get_close_matches(name, known, n=3, cutoff=0.75)))]


def _clauses(argv: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """Each flag with what follows `=` in its word and with the words up to the next flag."""
    position = 0
    while position < len(argv):
        name, equals, inline = (
            argv[position].partition("=") if argv[position].startswith("--") else (argv[position], "", "")
        )
        position += 1
        start = position
        while name.startswith("--") and position < len(argv) and not _is_flag(argv[position]):
            position += 1
        yield name, inline if equals else None, list(argv[start:position])


def _is_flag(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return " " not in word
    return False


def _read(line: CommandLine, name: str, row: Flag, words: list[str]) -> None:
    least, most = _arity(row, len(words))
    if len(words) < least:
        line.unread.append(row)
        line.errors.append(
            f"{name}: needs {'a value' if least == 1 else f'{least} values'}{f', has {len(words)}' if words else ''}"
        )
        return
    for word in words[most:]:
        fault = "takes no value" if most == 0 else "has a value too many"
        line.errors.append(f"{name} {word}: {fault}; remove {word!r}")
    try:
        line.given.append(Given(name, row, _value(row, words[:most])))
    except ValueError as error:
        line.unread.append(row)
        line.errors.append(f"{name} {error}")


def _arity(row: Flag, words: int) -> tuple[int, int]:
    """The fewest and the most values that a flag takes, of which `words` are there."""
    if row.type is None:
        return 0, 0
    if isinstance(row.nargs, int):
        return row.nargs, row.nargs
    return {None: (1, 1), "*": (0, words), "+": (1, max(1, words))}[row.nargs]


def _value(row: Flag, words: list[str]) -> Any:
    if row.type is None:
        return row.stores
    converted = [_convert(row, word) for word in words]
    return converted if row.nargs in ("*", "+") or isinstance(row.nargs, int) else converted[0]


def _convert(row: Flag, word: str) -> Any:
    assert row.type is not None
    try:
        value = row.type(word)
    except (ValueError, SyntaxError, TypeError, OverflowError):
        raise ValueError(f"{word}: must be {_kind(row.type)}") from None
    if row.choices and value not in row.choices:
        raise ValueError(f"{word}: must be one of {', '.join(map(str, row.choices))}")
    return value


def _kind(read: Callable[[str], Any]) -> str:
    """What a reader takes: its docstring says it."""
    known = {int: "a whole number", float: "a number", str: "text"}
    sentence = (read.__doc__ or "").split("\n")[0].rstrip(".")
    return known.get(read) or sentence[0].lower() + sentence[1:]  # type: ignore[call-overload]


def defaults() -> dict[str, Any]:
    """The value of every argument when nothing is given."""
    values: dict[str, Any] = {}
    for row in ROWS:
        values.setdefault(row.dest, row.default)
    return values


class _ExtraParser(ArgumentParser):
    """Reads a user's own flags; complains by raising."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False, add_help=False)

    def error(self, message: str) -> Any:
        raise ValueError(message)


def read_command_line(
    argv: Sequence[str], extra_args_provider: ExtraArgs | None = None, args_defaults: Mapping[str, Any] | None = None
) -> tuple[Namespace, CommandLine]:
    """All arguments, those of the user's own provider included, and the scan they came from."""
    parser = _ExtraParser()
    if extra_args_provider is not None:
        parser = extra_args_provider(parser) or parser
    line = scan(argv, parser._option_string_actions)
    args = Namespace(**{**defaults(), **(args_defaults or {})})
    for given in line.given:
        setattr(args, given.row.dest, given.value)
    for row in line.unread:
        setattr(args, row.dest, Unknown())
    try:
        parser.parse_args(line.extra, args)
    except ValueError as error:
        line.errors.append(str(error))
    return args, line


def world_size_of_environment(default: int | None = 1) -> int | None:
    """Processes of this job, as the launcher says."""
    names = ("RANK_SIZE", "MS_WORKER_NUM", "WORLD_SIZE")
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), default)


def rank_of_environment() -> int:
    """This process among them; the launcher's scheduler, which runs the same script, is none of them."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return -1
    return int(next((os.environ[name] for name in ("RANK_ID", "RANK") if os.environ.get(name)), "0"))
