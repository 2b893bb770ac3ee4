"""The way from a command line to given values, by the flag table. Findings are gathered, but of mistakes in the user's
own flags there is only the first one.

Unlike argparse by default, it takes no abbreviations.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mapping.flags import BY_NAME, Flag
from mapping.given import Given
from mapping.readers.meaning import DASHES, unknown
from parallel_core.config.base import has_type
from parallel_core.config.tree import OPTIONS
from parallel_core.findings import Finding
from parallel_core.system.environment import is_scheduler, number_of

ExtraArgs = Callable[[ArgumentParser], Any]


@dataclass
class CommandLine:
    """The result of scanning a command line: the given values, the rows of flags whose values could not be read
    (`unread`), the attributes of the user's own flags and defaults that the script sets (`extra`), and findings."""

    given: list[Given] = field(default_factory=list)
    unread: list[Flag] = field(default_factory=list)
    """The rows of flags whose values could not be read."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The attributes of the user's own flags, and the defaults that the script sets."""
    findings: list[Finding] = field(default_factory=list)


def scan(
    argv: Sequence[str], extra_args_provider: ExtraArgs | None = None, args_defaults: Mapping[str, Any] | None = None
) -> CommandLine:
    """The result of scanning `argv` by the flag table, and by the parser of the flags that `extra_args_provider` adds.
    args_defaults: defaults that the script sets, by attribute. Mistakes in argv become findings, but of those in the
    user's own flags only the first; then `extra` is empty."""
    line, parser, words_of_extra = CommandLine(), _extra_parser(extra_args_provider), []
    options: Mapping[str, Any] = parser._option_string_actions
    for name, inline, words in _clauses(argv):
        if name in options:
            words_of_extra += [f"{name}={inline}" if inline is not None else name, *words]
        elif name in BY_NAME:
            _read(line, name, BY_NAME[name], words if inline is None else [inline, *words])
        elif _is_flag(name):
            line.findings.append(unknown(name, [*BY_NAME, *options]))
        else:
            line.findings.append(Finding(name, None, "a value without a flag before it", "remove it"))
    try:
        line.extra = vars(parser.parse_args(words_of_extra, Namespace(**(args_defaults or {}))))
    except _Complaint as complaint:
        line.findings.append(complaint.args[0])
    return line


class _Complaint(Exception):
    """An error of argparse about a user's own flag; its argument is a finding."""


class _ExtraParser(ArgumentParser):
    """The parser of a user's own flags; it raises `_Complaint` instead of ending the process."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False, add_help=False)

    def error(self, message: str) -> Any:
        head, _, rule = message.removeprefix("argument ").partition(": ")
        raise _Complaint(Finding(head, None, rule or "is wrong", "change it"))


_NO_EXTRA_FLAGS = _ExtraParser()


def _extra_parser(extra_args_provider: ExtraArgs | None) -> ArgumentParser:
    if extra_args_provider is None:
        return _NO_EXTRA_FLAGS
    parser = _ExtraParser()
    return extra_args_provider(parser) or parser


def _clauses(argv: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """For each flag (or word without one) its name, the text behind `=` in its word or None, and the words up to the
    next flag."""
    position = 0
    while position < len(argv):
        name, equals, inline = argv[position].partition("=") if _is_flag(argv[position]) else (argv[position], "", "")
        position += 1
        start = position
        while _is_flag(name) and position < len(argv) and not _is_flag(argv[position]):
            position += 1
        yield name, inline if equals else None, list(argv[start:position])


def lacks_value(argv: Sequence[str]) -> list[str]:
    """The flags of the table that have fewer values than they need, unless one stands behind `=`, and all flags one of
    whose values is empty."""
    return [
        name
        for name, inline, words in _clauses(argv)
        if inline == "" or "" in words or (inline is None and name in BY_NAME and _is_short(BY_NAME[name], words))
    ]


def _is_short(row: Flag, words: Sequence[str]) -> bool:
    return len(words) < _arity(row, len(words))[0]


def _is_flag(word: str) -> bool:
    if not word.startswith(DASHES) or word in DASHES:
        return False
    try:
        float(word)
    except ValueError:
        return " " not in word
    return False


def _read(line: CommandLine, name: str, row: Flag, words: list[str]) -> None:
    least, most = _arity(row, len(words))
    if len(words) < least:
        needed = "a value" if least == 1 else f"{least} values"
        line.unread.append(row)
        line.findings.append(Finding(name, " ".join(words) or None, f"needs {needed}", "add it"))
        return
    for word in words[most:]:
        fault = "takes no value" if most == 0 else "has a value too many"
        line.findings.append(Finding(name, word, fault, f"remove {word!r}"))
    try:
        line.given.append(Given(name, _value(row, words[:most]), row))
    except Unreadable as error:
        line.unread.append(row)
        line.findings.append(Finding(name, error.word, error.rule, "change it"))


def _arity(row: Flag, words: int) -> tuple[int, int]:
    """The fewest and the most values that a flag takes, where `words` words follow it."""
    if row.type is None:
        return 0, 0
    if isinstance(row.nargs, int):
        return row.nargs, row.nargs
    return {None: (1, 1), "*": (0, words), "+": (1, max(1, words)), "1+": (1, max(1, words))}[row.nargs]


def _value(row: Flag, words: list[str]) -> Any:
    if row.type is None:
        return row.stores
    converted = [convert(row, word) for word in words]
    one = row.nargs is None or (row.nargs == "1+" and len(converted) == 1)
    return converted[0] if one else converted


_NO_VALUE = ValueError, SyntaxError, TypeError, AttributeError, OverflowError
"""The errors of readers of values that are none of theirs."""


class Unreadable(ValueError):
    """A value that its flag cannot have, as text in `word`; `rule` says what it must be."""

    def __init__(self, word: str, rule: str) -> None:
        super().__init__(rule)
        self.word, self.rule = word, rule


def convert(row: Flag, word: str) -> Any:
    """The value of one word of a flag that takes values, by the row's reader and choices. Raises `Unreadable` for a
    word that these do not take."""
    assert row.type is not None
    try:
        value = row.type(word)
    except _NO_VALUE:
        raise Unreadable(word, f"must be {kind(row.type)}") from None
    if row.choices and value not in row.choices:
        raise Unreadable(
            word, f"must be one of {', '.join(str(part) for part in row.choices if part not in row.refuses)}"
        )
    return value


def taken(row: Flag, value: Any) -> Any:
    """A value of a file or a script as the flag's reader would give it: YAML takes 1e-5 for text. Raises `Unreadable`
    for one that the flag cannot have; the number of a list's values is not checked."""
    if row.type is None:
        if not isinstance(value, bool):
            raise Unreadable(repr(value), "must be true or false")
        return value
    if row.nargs is None or (row.nargs == "1+" and not isinstance(value, list | tuple)):
        return _taken(row, value)
    return [_taken(row, part) for part in (value if isinstance(value, list | tuple) else [value])]


def _taken(row: Flag, value: Any) -> Any:
    plain = row.type in (int, float, str)
    if isinstance(value, str) or (plain and isinstance(value, int | float) and not isinstance(value, bool)):
        return convert(row, str(value))
    if plain or isinstance(value, bool):
        raise Unreadable(repr(value), f"must be {kind(row.type)}")  # type: ignore[arg-type]
    if row.target and has_type(value, OPTIONS[row.target].type):
        return value
    try:
        return row.type(value)  # type: ignore[misc]
    except _NO_VALUE:
        raise Unreadable(repr(value), f"must be {kind(row.type)}") from None  # type: ignore[arg-type]


def kind(read: Callable[[str], Any]) -> str:
    """The kind of value that a reader takes, in words for a message: set words for int, float and str, else the first
    line of the reader's docstring, with a small first letter and without its full stop."""
    known = {int: "a whole number", float: "a number", str: "text"}
    sentence = (read.__doc__ or "").split("\n")[0].rstrip(".")
    return known.get(read) or sentence[0].lower() + sentence[1:]  # type: ignore[call-overload]


def world_size_of_environment() -> int | None:
    """The number of processes of this job, as the launcher's environment says (RANK_SIZE, MS_WORKER_NUM or WORLD_SIZE,
    the first that is not empty); None without these. Raises ConfigError if that is no whole number from 0 on."""
    return number_of("RANK_SIZE", "MS_WORKER_NUM", "WORLD_SIZE", default=None)


def rank_of_environment() -> int:
    """This process's rank, as the launcher's environment says (RANK_ID, else RANK), 0 without these; -1 for msrun's
    scheduler, which runs the same script. Raises ConfigError if that is no whole number from 0 on."""
    return -1 if is_scheduler() else number_of("RANK_ID", "RANK", default=0)
