"""The documents' blocks and tables as they stand in tests/assets/documents, by document and number."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.assets import asset

DOCUMENTS = ("000", "001", "002", "003", "004")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
_IN_TEXT = re.compile(r"^Named in its text: (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block."""

    number: str
    language: str
    """The word behind the fence in small letters; a block without one that is written in JSON is `json`."""
    text: str


def blocks(document: str) -> list[Block]:
    """The fenced blocks in order."""
    found = _FENCE.findall(_read(document))
    return [Block(str(number), _language(word, text), text) for number, (word, text) in enumerate(found)]


def tables(document: str) -> list[list[tuple[str, str]]]:
    """The rows of each table without its head, as flag and config path."""
    return [
        [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()[2:]]
        for table in _TABLE.findall(_FENCE.sub("", _read(document)))
    ]


def named_in_text(document: str) -> list[str]:
    """Flags and environment variables that the sentences around the blocks name."""
    return re.findall(r"`([^`]+)`", " ".join(_IN_TEXT.findall(_read(document))))


def python_blocks(document: str) -> list[str]:
    return [block.text for block in blocks(document) if block.language == "python"]


def _read(document: str) -> str:
    return asset(f"documents/{document}.md").read_text(encoding="utf-8")


def _language(word: str, text: str) -> str:
    if not word and text.startswith('"'):
        return "json"
    return {"": "text", "log": "text"}.get(word, word.lower())


def without_dots(text: str) -> str:
    """The block without the lines of dots by which the document leaves something out."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.fullmatch(r"\s*\.+\s*", line))
