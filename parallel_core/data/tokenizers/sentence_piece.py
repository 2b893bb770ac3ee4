"""SentencePiece's models, by the package `sentencepiece`, as Megatron's three tokenizers use them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.library import library
from parallel_core.data.tokenizers.sentence_piece_model import FLAG, SentencePieceModel, read_model

_ROLES = {"<CLS>": "cls", "<SEP>": "sep", "<EOD>": "eod", "<MASK>": "mask"}
"""Token that Megatron's older SentencePieceTokenizer adds -> its role."""
_NAMES = {"pad": "<PAD>", "bos": "<BOS>", "eos": "<EOS>"}
"""Role -> name of the token that Megatron's older SentencePieceTokenizer adds if the model has none with the role."""
_BLANK = "\u262f"
"""A mark in the place of a blank that the model would drop: a character that no model knows."""


def facts(options: TokenizerOptions) -> Facts:
    """Size and special ids of the model and of the tokens that are added to it. Raises ValueError for a file that is
    missing or damaged, and for --tokenizer-special-tokens without --tokenizer-sentencepiece-legacy; with
    --legacy-tokenizer these tokens are not looked at."""
    return _with_added(options, read_model(Path(options.tokenizer_model or "")))[0]


def _with_added(options: TokenizerOptions, model: SentencePieceModel) -> tuple[Facts, dict[str, int]]:
    """The facts, and token -> id of the tokens that are looked for in text."""
    found, ids = model.facts(), {piece: number for number, piece in enumerate(model.pieces)}
    special: dict[str, int] = {}

    def add(token: str) -> int:
        special[token] = ids.setdefault(token, len(ids))
        return special[token]

    if options.legacy_tokenizer and options.tokenizer_type == "SentencePieceTokenizer":
        roles = {role: add(token) for token, role in _ROLES.items()}
        for role, name in _NAMES.items():
            roles[role] = add(model.pieces[model.roles[role]] if role in model.roles else name)
        others = tuple(add(f"<extra_id_{number}>") for number in range(options.vocab_extra_ids))
        found = replace(found, additional_special_tokens_ids=others, **roles)
    elif not options.legacy_tokenizer and options.tokenizer_special_tokens:
        if not options.tokenizer_sentencepiece_legacy:
            raise ValueError(
                "--tokenizer-special-tokens: a SentencePiece model takes further tokens only with "
                "--tokenizer-sentencepiece-legacy; add it, or leave the tokens out"
            )
        added = tuple(add(token) for token in options.tokenizer_special_tokens)
        found = replace(found, additional_special_tokens_ids=added)
    return replace(found, vocab_size=max([len(model.pieces) - 1, *special.values()]) + 1), special


class SentencePieceTokenizer(MegatronTokenizer):
    """A tokenizer by a `tokenizer.model`. Tokens that options add to the model's are looked for in text before the
    model cuts it."""

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError as `facts` and for a file that the package does not read; ConfigError without the
        package."""
        path = Path(options.tokenizer_model or "")
        self._model = read_model(path)
        found, self._special = _with_added(options, self._model)
        super().__init__(found)
        package = library(options.tokenizer_type, "sentencepiece")
        try:
            self._backend: Any = package.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{FLAG} {path}: not a SentencePiece model ({error})") from error
        self._begins_with_bos = options.legacy_tokenizer and options.tokenizer_type == "Llama2Tokenizer"
        self._is_legacy = options.legacy_tokenizer
        squeezes = self._ids("x  y") == self._ids("x y")
        self._keeps_blanks = squeezes and not options.tokenizer_sentencepiece_ignore_extra_whitespaces

    def tokenize(self, text: str) -> list[int]:
        return self.encode(text, special=True)

    def encode(self, text: str, special: bool = False) -> list[int]:
        begin = [self._model.roles["bos"]] if special and self._begins_with_bos and "bos" in self._model.roles else []
        if not self._special:
            return begin + (self._ids_with_blanks(text) if self._keeps_blanks else self._ids(text))
        return begin + self._around_special(text)

    def _around_special(self, text: str) -> list[int]:
        """The ids of a text with special tokens in it; each part between two of them is a text of its own."""
        ids: list[int] = []
        parts = self._pattern.split(text)
        for number, part in enumerate(parts):
            if number % 2:
                ids.append(self._special[part])
                continue
            new = self._ids(part)
            # Megatron's newer tokenizer drops the blank that the model puts before a text, except at the beginning and
            # behind the last special token.
            is_inner = 0 < number < len(parts) - 1
            if is_inner and not self._is_legacy and new[:1] == [self._separator]:
                new = new[1:]
            ids += new
        return ids

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Among tokens that begin at the same place, the first one added wins.
        return re.compile(f"({'|'.join(map(re.escape, self._special))})")

    @cached_property
    def _separator(self) -> int:
        return self._backend.piece_to_id("\u2581")

    def _ids(self, text: str) -> list[int]:
        try:
            return self._backend.encode(text)
        except (RuntimeError, UnicodeError, TypeError) as error:
            raise ValueError(f"text is not valid Unicode: {text[:40]!r} ({error})") from error

    def _ids_with_blanks(self, text: str) -> list[int]:
        """The ids of a text with the blanks that the model would drop. Each piece of text is encoded in front of an
        unknown character, whose id is then cut off."""
        marked = re.sub(r"(?<= )(?= )|^ | $", f" {_BLANK} ", text).rstrip()
        return [token_id for part in marked.split(_BLANK) if part for token_id in self._ids(part + _BLANK)[:-1]]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        text = "".join(self._texts([int(token_id) for token_id in token_ids]))
        return text.strip() if self._special and not self._is_legacy else text

    def _texts(self, ids: list[int]) -> Iterator[str]:
        """The text of each run of the model's pieces, and of each special token with a blank on both sides."""
        run: list[int] = []
        for token_id in ids:
            if token_id in self._special_texts:
                yield f"{self._decoded(run)} {self._special_texts[token_id]} "
                run = []
            else:
                run.append(token_id)
        yield self._decoded(run)

    @cached_property
    def _special_texts(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self._special.items()}

    def _decoded(self, ids: list[int]) -> str:
        return self._backend.decode(self._known(ids, range(len(self._model.pieces))))

    @cached_property
    def vocab(self) -> dict[str, int]:
        return {**{piece: number for number, piece in enumerate(self._model.pieces)}, **self._special}
