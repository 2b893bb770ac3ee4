"""The blocks and tables of the documents in tests/assets/documents, by document and number."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.assets import asset

DOCUMENTS = ("000", "001", "002", "003", "004")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
_IN_TEXT = re.compile(r"^Named in its text: (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block of a document: its number from 0, its language, its text."""

    number: str
    language: str
    """The word behind the fence in small letters; `json` for one without a word that begins as JSON, `text` for others
    and logs."""
    text: str


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document in order."""
    found = _FENCE.findall(_read(document))
    return [Block(str(number), _language(word, text), text) for number, (word, text) in enumerate(found)]


def tables(document: str) -> list[list[tuple[str, str]]]:
    """The rows of each table of a document, without its head, as (flag, config path)."""
    return [
        [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()[2:]]
        for table in _TABLE.findall(_FENCE.sub("", _read(document)))
    ]


def named_in_text(document: str) -> list[str]:
    """The flags and environment variables that a document's lines "Named in its text" list."""
    return re.findall(r"`([^`]+)`", " ".join(_IN_TEXT.findall(_read(document))))


def python_blocks(document: str) -> list[str]:
    """The texts of a document's Python blocks."""
    return [block.text for block in blocks(document) if block.language == "python"]


def _read(document: str) -> str:
    return asset(f"documents/{document}.md").read_text(encoding="utf-8")


def _language(word: str, text: str) -> str:
    """The language of a block by the word behind its fence; without a word `json` for text that begins with a quote,
    else `text`."""
    if not word and text.startswith('"'):
        return "json"
    return {"": "text", "log": "text"}.get(word, word.lower())


def without_dots(text: str) -> str:
    """The text without lines of dots alone, by which a document leaves something out."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.fullmatch(r"\s*\.+\s*", line))
