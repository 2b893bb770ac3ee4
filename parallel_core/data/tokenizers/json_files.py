"""Readers of tokenizers' JSON files, whose errors name flag and file."""

import json
from pathlib import Path
from typing import Any


def read_json(flag: str, path: Path, expected: str, kind: type) -> Any:
    """The content of a JSON file, which must be of the Python type `kind`. expected: the form in words.
    Raises ValueError, naming flag and file, for a file that cannot be read, is no JSON or of another type."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{flag} {path}: expected {expected} ({error})") from error
    if not isinstance(content, kind):
        raise ValueError(f"{flag} {path}: expected {expected}, not {type(content).__name__}")
    return content


def token_ids(flag: str, path: Path, content: Any) -> dict[str, int]:
    """`content` as a vocabulary, token -> id. Raises ValueError, naming flag and file, if it is none."""
    if not isinstance(content, dict) or not all(is_id(token_id) for token_id in content.values()):
        raise ValueError(f"{flag} {path}: expected a JSON object of token to id")
    return content


def is_id(value: Any) -> bool:
    """Whether a value that was read from a file can be a token's id: an int, no bool, from 0 and below 2**31."""
    return type(value) is int and 0 <= value < 2**31
