"""Tiktoken's vocabularies in Megatron's JSON form, by the package `tiktoken`."""

import base64
import binascii
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.json_files import read_json
from parallel_core.data.tokenizers.library import library

FLAG = "--tokenizer-model"
DEFAULT_VOCAB_SIZE = 131072
_ROLES = {"<unk>": "unk", "<s>": "bos", "</s>": "eos", "<mask>": "mask", "<pad>": "pad", "<cls>": "cls", "<sep>": "sep"}
_OF_LEGACY = 3
"""The number of special tokens with a role in Megatron's older tokenizer."""

_LETTERS_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "v1": rf"{_LETTERS_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": rf"{_LETTERS_BEFORE}{_UPPER}*{_LOWER}+|{_LETTERS_BEFORE}{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""--tiktoken-pattern -> regular expression that cuts text into words; v2 cuts also where the case of letters
changes."""


def _special(options: TokenizerOptions) -> list[str]:
    """The tokens of the first ids, in order: those with a role or the user's, then placeholders. Raises ValueError
    where they do not fit."""
    needed = list(_ROLES)[: _OF_LEGACY if options.legacy_tokenizer else None]
    named = list(options.tokenizer_special_tokens or needed)
    number = options.tiktoken_num_special_tokens
    missing = [token for token in needed if token not in named]
    if missing:
        raise ValueError(f"--tokenizer-special-tokens: must contain {' '.join(needed)}; add {' '.join(missing)}")
    if len(named) > number:
        raise ValueError(f"--tiktoken-num-special-tokens {number}: must be at least {len(named)}, the special tokens")
    special = [*named, *(f"<SPECIAL_{place}>" for place in range(len(named), number))]
    if len(set(special)) < len(special):
        raise ValueError(f"--tokenizer-special-tokens {' '.join(named)}: must differ from each other")
    return special


def facts(options: TokenizerOptions) -> Facts:
    """The size --vocab-size (131072 if that is None or 0), to which special tokens and vocabulary together are cut, and
    the special ids, which are among the first. Raises ValueError for --tokenizer-special-tokens that lack a needed
    token or repeat one, and where these flags and --tiktoken-num-special-tokens do not fit together."""
    special, size = _special(options), options.vocab_size or DEFAULT_VOCAB_SIZE
    if size <= len(special):
        raise ValueError(f"--vocab-size {size}: must be above --tiktoken-num-special-tokens {len(special)}; raise it")
    ids = {role: special.index(token) for token, role in _ROLES.items() if token in special}
    plain = ("<unk>", "<s>", "</s>")
    named = options.tokenizer_special_tokens or list(_ROLES)
    others = () if options.legacy_tokenizer else tuple(special.index(token) for token in named if token not in plain)
    return Facts(size, eod=ids["eos"], additional_special_tokens_ids=others, **ids)


class RankedTokenizer(MegatronTokenizer):
    """Byte-level BPE of the package `tiktoken`, in which tokens have ids in the order of merges; special tokens have
    the first ids."""

    _special: Sequence[str]
    _ranks: dict[bytes, int]
    _backend: Any
    """The package's `Encoding`."""

    @classmethod
    def _encoding(cls, kind: str, **parts: Any) -> Any:
        """The package's `Encoding` of pattern, ranks and special tokens (`parts`). Raises ConfigError without the
        package."""
        return library(kind, "tiktoken").Encoding("megatron", **parts)

    @cached_property
    def vocab(self) -> dict[str, int]:
        # Several tokens that are parts of characters read the same: the first one keeps the text.
        vocab = {token: token_id for token_id, token in enumerate(self._special)}
        for token, token_id in self._ranks.items():
            vocab.setdefault(token.decode("utf-8", errors="replace"), token_id)
        return vocab

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        of_bytes = {token_id: token.decode("utf-8", errors="replace") for token, token_id in self._ranks.items()}
        return {**dict(enumerate(self._special)), **of_bytes}


class TikTokenizer(RankedTokenizer):
    """Megatron's TikTokenizer, which finds special tokens in texts; the older one (--legacy-tokenizer) does not."""

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError for a file that is missing, damaged or too small, for a --tiktoken-pattern that does not
        exist, and as `facts`; ConfigError without the package."""
        super().__init__(facts(options))
        self._special = _special(options)
        self._is_legacy = options.legacy_tokenizer
        pattern = options.tiktoken_pattern or "v2"
        if pattern not in PATTERNS:
            raise ValueError(f"--tiktoken-pattern {pattern}: must be one of {', '.join(PATTERNS)}; change it")
        first = len(self._special)
        self._ranks = _ranks(Path(options.tokenizer_model or ""), self.vocab_size - first, first)
        self._backend = self._encoding(
            options.tokenizer_type,
            pat_str=PATTERNS[pattern],
            mergeable_ranks=self._ranks,
            special_tokens={token: token_id for token_id, token in enumerate(self._special)},
        )

    def tokenize(self, text: str) -> list[int]:
        if self._is_legacy:
            return self._backend.encode_ordinary(text)
        return self._backend.encode(text, allowed_special="all")

    def detokenize(self, token_ids: Sequence[int]) -> str:
        ids = self._known(token_ids)
        if self._is_legacy:
            return self._backend.decode(ids)
        # Megatron 0.16.1 decodes each token by itself, so that a cut character is U+FFFD.
        return "".join(self._backend.decode([token_id]) for token_id in ids)


def _ranks(path: Path, wanted: int, first: int) -> dict[bytes, int]:
    """Bytes of each of the file's first `wanted` tokens -> id, from `first` on. Raises ValueError where there are
    fewer."""
    entries = read_json(FLAG, path, "a JSON list of rank and token_bytes", list)
    if len(entries) < wanted:
        raise ValueError(
            f"{FLAG} {path}: has {len(entries)} tokens, fewer than --vocab-size {wanted + first} without its {first} "
            f"special ones; lower --vocab-size to at most {len(entries) + first}"
        )
    return ranks_of(path, entries[:wanted], first)


def ranks_of(path: Path, entries: Sequence[Any], first: int) -> dict[bytes, int]:
    """Bytes of each entry of a file -> id, counted from `first` on. Raises ValueError, naming the file, for an entry
    whose rank is not its place in the list, whose bytes are missing or repeated, and where entry n of the first 256 is
    not the byte n."""
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        try:
            token, is_next = base64.b64decode(entry["token_bytes"], validate=True), entry["rank"] == number
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ValueError(f"{FLAG} {path}: entry {number} must have rank and token_bytes ({error!r})") from error
        if not is_next or token in ranks or (number < 256 and token != bytes([number])):
            raise ValueError(f"{FLAG} {path}: entry {number} must have rank {number} and bytes of its own")
        ranks[token] = first + number
    return ranks
