"""A token that is looked for in text, as the files of HuggingFace's folders describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before anything else."""

    content: str
    special: bool = False
    normalized: bool = True
    """Whether it is looked for in the normalised text."""
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @staticmethod
    def of(entry: Any, **default: bool) -> AddedToken:
        """A token as a file describes it: its text, or an object with its properties. Raises ValueError if neither."""
        given = {"content": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("content"), str):
            raise ValueError(f"expected a token, not {str(entry)[:40]!r}")
        switches = ("special", "normalized", "lstrip", "rstrip", "single_word")
        return AddedToken(
            given["content"], **{**default, **{name: bool(given[name]) for name in switches if name in given}}
        )
