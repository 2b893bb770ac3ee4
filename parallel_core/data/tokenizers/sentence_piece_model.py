"""Reader of a SentencePiece model file: its pieces and their roles, without the package."""

from functools import lru_cache
from pathlib import Path
from struct import error as struct_error
from struct import unpack
from typing import NamedTuple

from parallel_core.data.tokenizers.base import Facts
from parallel_core.system.protobuf import fields

FLAG = "--tokenizer-model"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Numbers of the fields of the file's message (protobuf)."""
_TEXT, _SCORE, _KIND = 1, 2, 3
"""Numbers of the fields of a piece."""
_UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Kinds of pieces, as numbers in the file."""
_ALGORITHM, _UNK_ID, _UNIGRAM = 3, 40, 1
"""Numbers of fields of the trainer's settings; _UNIGRAM is a value of _ALGORITHM."""
_CHARACTER_MAP = 2
"""Number of a field of the normalizer's settings."""
_NAMES = {45: ("unk", "<unk>"), 46: ("bos", "<s>"), 47: ("eos", "</s>"), 48: ("pad", "<pad>")}
"""Number of a field of the trainer's settings -> the role whose piece it names, and that piece's name where the field
is missing."""


class SentencePieceModel(NamedTuple):
    """The content of a model file: of each piece in the order of ids its text, score (byte pairs with a higher one are
    merged first) and kind, as a number; role -> id; whether it is a unigram model; id and text of the unknown piece, as
    the trainer's settings name it; and the compiled map by which text is normalised."""

    pieces: list[str]
    roles: dict[str, int]
    scores: list[float]
    """The score of each piece: byte pairs with a higher one are merged first."""
    kinds: list[int]
    is_unigram: bool
    unk_id: int
    unk_piece: str
    character_map: bytes
    """The compiled map by which text is normalised before it is cut."""

    def facts(self) -> Facts:
        """Size and special ids; the end of a document is the end of a text."""
        return Facts(len(self.pieces), eod=self.roles.get("eos"), **self.roles)  # type: ignore[arg-type]


def read_model(path: Path) -> SentencePieceModel:
    """The content of a model file. Raises ValueError naming a file that is missing or no model."""
    if not path.is_file():
        raise ValueError(f"{FLAG} {path}: there is no such file; give a SentencePiece tokenizer.model")
    try:
        state = path.stat()
        return _read_once(path, state.st_mtime_ns, state.st_size)
    except (OSError, IndexError, ValueError, struct_error) as error:
        raise ValueError(f"{FLAG} {path}: not a SentencePiece model ({error})") from error


@lru_cache(maxsize=2)
def _read_once(path: Path, modified: int, size: int) -> SentencePieceModel:
    """The content of a file of this time and size, kept: facts and tokenizer ask for it one after the other, and a
    large model takes seconds to read."""
    return _read(path.read_bytes())


def _read(content: bytes) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    names, numbers, character_map = dict(_NAMES.values()), {_ALGORITHM: _UNIGRAM, _UNK_ID: 0}, b""
    for field, start, stop in fields(content, 0, len(content)):
        if field == _PIECES:
            pieces.append(_piece(content, start, stop))
        elif field == _TRAINER:
            for inner, first, last in fields(content, start, stop):
                if inner in _NAMES:
                    names[_NAMES[inner][0]] = content[first:last].decode("utf-8")
                elif inner in numbers:
                    numbers[inner] = first
        elif field == _NORMALIZER:
            for inner, first, last in fields(content, start, stop):
                character_map = content[first:last] if inner == _CHARACTER_MAP else character_map
    if not pieces:
        raise ValueError("it has no pieces")
    texts, scores, kinds = map(list, zip(*pieces, strict=True))
    ids = {piece: number for number, piece in enumerate(texts)}
    wanted = {role: _UNKNOWN if role == "unk" else CONTROL for role in names}
    roles = {role: ids[name] for role, name in names.items() if name in ids and kinds[ids[name]] == wanted[role]}
    is_unigram = numbers[_ALGORITHM] == _UNIGRAM
    return SentencePieceModel(
        texts, roles, scores, kinds, is_unigram, numbers[_UNK_ID], names["unk"], bytes(character_map)
    )


def _piece(content: bytes, start: int, stop: int) -> tuple[str, float, int]:
    """Text, score and kind of the piece in bytes start..stop-1."""
    text, score, kind = "", 0.0, 1
    for inner, first, last in fields(content, start, stop):
        if inner == _TEXT:
            text = content[first:last].decode("utf-8")
        elif inner == _SCORE:
            (score,) = unpack("<f", content[first:last])
        elif inner == _KIND:
            kind = first
    return text, score, kind
