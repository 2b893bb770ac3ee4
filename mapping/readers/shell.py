"""As much of the shell as launch scripts use: assignments, arrays, expansions. Nothing is executed.

What it cannot know (a command's output, a positional parameter, a value under a condition) it lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"^(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_OPENERS, _CLOSERS = {"if", "for", "while", "until", "case"}, {"fi", "done", "esac"}
_EXPANSION = re.compile(
    r"\$\(\((?P<sum>.*?)\)\)|\$\((?P<command>.*?)\)|`(?P<ticks>.*?)`"
    r"|\$\{(?P<braces>[^}]*)\}|\$(?P<name>\w+|[@#*?$!-])",
    re.DOTALL,
)
_COUNT = re.compile(r"^#(?P<name>\w+)\[[@*]\]$")
_BRACES = re.compile(r"^(?P<name>\w+)(?P<all>\[[@*]\])?(?:(?P<operator>:?[-=])(?P<default>.*))?$", re.DOTALL)
_SUM = re.compile(r"^[\d\s+*/%()-]+$")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1(?P<rest>[^\n]*)\n(?:.*\n)*?[ \t]*\2[ \t]*(?=\n|$)")
UNKNOWN = "UNKNOWN"
"""Stands in a word for what could not be resolved."""


@dataclass
class Script:
    """What reading a script found: its variables, its commands as words, and what stayed open."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    conditional: set[str] = field(default_factory=set)


def read_script(text: str, environment: Mapping[str, str] | None = None) -> Script:
    """Go through a script's statements in order, following its assignments."""
    script = Script({name: [value] for name, value in (environment or {}).items()})
    depth = 0
    for statement in _statements(text):
        word = statement.split(maxsplit=1)[0]
        depth += (word in _OPENERS) - (word in _CLOSERS)
        statement = re.sub(r"^(then|else|do|[^\s()=$]+\))\s+", "", statement)
        assignment = _ASSIGNMENT.match(statement)
        if assignment and not _words_after_value(assignment[3]):
            _assign(script, assignment[1], bool(assignment[2]), assignment[3], depth > 0)
        elif word not in _OPENERS | _CLOSERS | {"then", "else", "elif", "do"}:
            script.commands.append([part for raw in _words(statement) for part in _expand(script, raw)])
    return script


def _assign(script: Script, name: str, append: bool, raw: str, under_condition: bool) -> None:
    inner = raw[1:-1] if raw.startswith("(") and raw.endswith(")") else None
    words = _words(raw if inner is None else inner)
    value = [part for word in words for part in _expand(script, word, splits=inner is not None)] or [""]
    if under_condition:
        script.conditional.add(name)
        if name in script.variables and not append:
            return
    script.variables[name] = [*script.variables.get(name, []), *value] if append else value


def _words_after_value(raw: str) -> bool:
    """`A=1 command` sets a variable for one command only: it is a command."""
    return not raw.startswith("(") and len(_words(raw)) > 1


def _statements(text: str) -> Iterator[str]:
    """Statements at newlines and semicolons outside quotes and brackets, without comments and here-documents."""
    text = _HERE_DOCUMENT.sub(lambda match: match["rest"], text)
    for statement in _split(text.replace("\\\n", " "), "\n;", comments=True):
        if statement.strip():
            yield statement.strip()


def _words(statement: str) -> list[str]:
    return [word for word in _split(statement, " \t\n", comments=True) if word]


def _split(text: str, separators: str, comments: bool) -> Iterator[str]:
    part, quote, depth, position = "", "", 0, 0
    while position < len(text):
        char = text[position]
        if char == "\\" and quote != "'":
            part += text[position : position + 2]
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "({":
            depth += 1
        elif char in ")}":
            depth = max(0, depth - 1)  # the pattern of a case has a closing one only
        elif comments and char == "#" and (not part or part[-1].isspace()):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        elif depth == 0 and char in separators:
            yield part
            part, position = "", position + 1
            continue
        part += char
        position += 1
    yield part


def _expand(script: Script, raw: str, splits: bool = True) -> list[str]:
    """The fields that one word becomes. The script itself is given no arguments, so all of them are none."""
    if raw in ('"$@"', "$@", "$*"):
        return []
    fields, open_field = [""], False
    for piece, quote in _pieces(raw):
        if quote == "'":
            values = [piece]
        elif quote == '"':
            array = re.fullmatch(r"\$\{(\w+)\[@\]\}", piece)
            values = _value(script, array[1]) if array else [_substitute(script, piece)]
        else:
            expanded = _substitute(script, piece)
            values = (expanded.split() or [""]) if splits and "$" in piece else [expanded]
        open_field = open_field or bool(quote)
        fields[-1] += values[0] if values else ""
        fields += values[1:]
    return [entry for entry in fields if entry or open_field]


def _pieces(raw: str) -> Iterator[tuple[str, str]]:
    """A word's parts with the quote each stands in; backslashes are taken off."""
    for match in re.finditer(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|((?:\\.|[^'\"\\])+)", raw, re.DOTALL):
        if match[1] is not None:
            yield match[1], "'"
        elif match[2] is not None:
            yield re.sub(r"\\([\"\\$`])", r"\1", match[2]), '"'
        else:
            yield re.sub(r"\\(.)", r"\1", match[3]), ""


def _value(script: Script, name: str) -> list[str]:
    if name not in script.variables:
        _note(script, f"${name}: is not set by the script")
        return [UNKNOWN]
    if name in script.conditional:
        _note(script, f"${name}: depends on a condition; {' '.join(script.variables[name])!r} is taken")
    return script.variables[name]


def _note(script: Script, sentence: str) -> None:
    if sentence not in script.unresolved:
        script.unresolved.append(sentence)


def _substitute(script: Script, text: str) -> str:
    return _EXPANSION.sub(lambda match: _replacement(script, match), text)


def _replacement(script: Script, match: re.Match[str]) -> str:
    if match["sum"] is not None:
        terms = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: " ".join(_value(script, name[1])), match["sum"])
        return str(_sum(terms)) if _SUM.match(terms) and "**" not in terms else _unknown(script, match[0])
    if match["braces"] is not None:
        return _braces(script, match["braces"])
    if match["name"] is not None and (match["name"][0].isalpha() or match["name"][0] == "_"):
        return " ".join(_value(script, match["name"]))
    return _unknown(script, match[0])


def _sum(terms: str) -> int:
    return int(eval(terms.replace("/", "//"), {"__builtins__": {}}))


def _unknown(script: Script, text: str) -> str:
    _note(script, f"{text}: only running the script would tell")
    return UNKNOWN


def _braces(script: Script, inside: str) -> str:
    count = _COUNT.match(inside)
    if count is not None:
        return str(len(_value(script, count["name"])))
    match = _BRACES.match(inside)
    if match is None or (not (match["name"][0].isalpha() or match["name"][0] == "_") and match["default"] is None):
        return _unknown(script, f"${{{inside}}}")
    known = script.variables.get(match["name"])
    if match["default"] is not None and not (known and known != [""]):
        return " ".join(_expand(script, match["default"])) if match["default"] else ""
    return " ".join(_value(script, match["name"]))
