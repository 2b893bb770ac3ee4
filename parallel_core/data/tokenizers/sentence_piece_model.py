"""A SentencePiece model file: its pieces and their roles, without the package."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from parallel_core.data.tokenizers.base import Facts
from parallel_core.protobuf import fields

FLAG = "--tokenizer-model"
_PIECES, _TRAINER = 1, 2
"""Fields of the file's message."""
_TEXT, _KIND = 1, 3
"""Fields of a piece."""
_UNKNOWN, _CONTROL = 2, 3
"""Kinds of pieces."""
_NAMES = {45: ("unk", "<unk>"), 46: ("bos", "<s>"), 47: ("eos", "</s>"), 48: ("pad", "<pad>")}
"""Fields of the trainer's settings that name a piece -> its role, and its name unless they are there."""


class SentencePieceModel(NamedTuple):
    """The pieces, in the order of their ids, and the ids of those with a role."""

    pieces: list[str]
    roles: dict[str, int]

    def facts(self) -> Facts:
        """Size and special ids; a document ends as a text does."""
        return Facts(len(self.pieces), eod=self.roles.get("eos"), **self.roles)  # type: ignore[arg-type]


def read_model(path: Path) -> SentencePieceModel:
    """Raises ValueError naming a file that is missing or no model."""
    if not path.is_file():
        raise ValueError(f"{FLAG} {path}: there is no such file; give a SentencePiece tokenizer.model")
    try:
        state = path.stat()
        return _read_once(path, state.st_mtime_ns, state.st_size)
    except (OSError, IndexError, ValueError) as error:
        raise ValueError(f"{FLAG} {path}: not a SentencePiece model ({error})") from error


@lru_cache(maxsize=2)
def _read_once(path: Path, modified: int, size: int) -> SentencePieceModel:
    """Size, special ids and the tokenizer are asked for one after the other; a large model takes seconds to walk."""
    return _read(path.read_bytes())


def _read(content: bytes) -> SentencePieceModel:
    pieces: list[str] = []
    kinds: list[int] = []
    names = dict(_NAMES.values())
    for field, start, stop in fields(content, 0, len(content)):
        if field == _PIECES:
            text, kind = "", 1
            for inner, first, last in fields(content, start, stop):
                if inner == _TEXT:
                    text = content[first:last].decode("utf-8")
                elif inner == _KIND:
                    kind = first
            pieces.append(text)
            kinds.append(kind)
        elif field == _TRAINER:
            for inner, first, last in fields(content, start, stop):
                if inner in _NAMES:
                    names[_NAMES[inner][0]] = content[first:last].decode("utf-8")
    if not pieces:
        raise ValueError("it has no pieces")
    ids = {piece: number for number, piece in enumerate(pieces)}
    wanted = {role: _UNKNOWN if role == "unk" else _CONTROL for role in names}
    roles = {role: ids[name] for role, name in names.items() if name in ids and kinds[ids[name]] == wanted[role]}
    return SentencePieceModel(pieces, roles)
