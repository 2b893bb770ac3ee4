"""Prompts: texts, ids or conversations, from a command line or from a file with a JSON object in each line."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.records import are_messages
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.findings import ConfigError, Finding

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """A prompt, by exactly one of text, ids and messages."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, str], ...] | None = None
    """The messages of a conversation, each with "role" and "content"; the assistant's answer is to follow."""

    def tokens(self, tokenizer: MegatronTokenizer, chat: Chat | None = None) -> list[int]:
        """The prompt's ids: given ids as they are; of a text by the tokenizer, with those that it puts around a text
        (BOS, EOS); of messages as `chat.prompt` writes them, or where `chat` is None by the tokenizer's own template,
        up to where the assistant answers. Raises ValueError for a text that the tokenizer cannot encode, messages that
        the template does not take, or a tokenizer without a template; ConfigError if the tokenizer's own needs jinja2,
        and that is not installed."""
        if self.ids is not None:
            return list(self.ids)
        if self.messages is not None and chat is not None:
            return chat.prompt(self.messages)
        if self.messages is not None:
            return tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
        assert self.text is not None
        return tokenizer.encode(self.text, special=True)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(entry) is int and entry >= 0 for entry in value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str) and bool(value), "a text that is not empty"),
    "ids": (_is_ids, "a list of ids from 0 on that is not empty"),
    "messages": (are_messages, 'a list of {"role", "content"} that is not empty'),
}
"""Key of a line -> (test of its value, the value in words)."""


def read_prompts(file: Path) -> list[Prompt]:
    """The prompts of a file with one of {"text"}, {"ids"} and {"messages"} in each line; blank lines are left out.

    Raises ConfigError that names every line without exactly one of them, or with a wrong or empty value of it, or the
    file if it cannot be read or has no prompt.
    """
    nothing = Finding("--prompts", file, "has no prompt", 'write {"text": ...} or {"ids": [...]} in each line')
    return [prompt for _, prompt in read_lines(file, _read, nothing)]


def read_lines(file: Path, read: Callable[[Any], T | str], nothing: Finding) -> list[tuple[int, T]]:
    """The number, from 1, of each line that is not blank, and the result of `read` for the JSON value in it. `read`
    returns a text to say that the value is wrong. Only a line feed, a carriage return or both end a line: JSON texts
    may hold other separators, such as U+2028.

    Raises ConfigError with a finding for every wrong line, or for a file that cannot be read; with the finding
    `nothing` for a file that has none but blank lines.
    """
    flag = nothing.flag
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError([Finding(flag, file, f"is not UTF-8 ({error.reason} at byte {error.start})")]) from error
    except OSError as error:
        raise ConfigError([Finding(flag, file, f"cannot be read ({error.strerror})", "name a file")]) from error
    made = [(number, _parsed(line, read)) for number, line in enumerate(lines, 1) if line.strip()]
    wrong = [
        Finding(flag, f"{file}, line {number}", problem, "change it")
        for number, problem in made
        if isinstance(problem, str)
    ]
    if wrong or not made:
        raise ConfigError(wrong or [nothing])
    return [(number, one) for number, one in made if not isinstance(one, str)]


def _parsed(line: str, read: Callable[[Any], T | str]) -> T | str:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})"
    return read(given)


def _read(given: Any) -> Prompt | str:
    """The prompt in a line's value, or the rule that the value breaks, as text."""
    kinds = [key for key in _KINDS if isinstance(given, dict) and key in given]
    if len(kinds) != 1:
        return f"must be an object with one of {', '.join(_KINDS)}"
    (kind,) = kinds
    fits, words = _KINDS[kind]
    if not fits(given[kind]):
        return f'"{kind}" must be {words}'
    value: Any = given[kind] if kind == "text" else tuple(given[kind])
    return Prompt(**{kind: value})
