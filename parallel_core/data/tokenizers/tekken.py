"""Mistral's tekken.json (MindSpeed-LLM's MagistralTokenizer), by the package `tiktoken`.

The file has the pattern that cuts text into words, the special tokens, which have the first ids and are not looked for
in texts, and the bytes of the other tokens in the order of merges.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.data.tokenizers.base import Facts, TokenizerOptions
from parallel_core.data.tokenizers.json_files import read_json
from parallel_core.data.tokenizers.tiktoken import FLAG, RankedTokenizer, ranks_of

NAME = "tekken.json"
_ROLES = {"<unk>": "unk", "<s>": "bos", "</s>": "eos", "<pad>": "pad"}
_SIZES = ("default_vocab_size", "default_num_special_tokens")


class _Tekken(NamedTuple):
    """The content of a tekken.json."""

    path: Path
    pattern: str
    size: int
    special: tuple[str, ...]
    """The tokens of the first ids; those that the file does not name are called <SPECIAL_id>."""
    entries: Sequence[Any]


def _read(given: str) -> _Tekken:
    """The content of a tekken.json, given by its path or its folder. Raises ValueError that says what is missing or
    wrong."""
    path = Path(given) / NAME if Path(given).is_dir() else Path(given)
    content = read_json(FLAG, path, "a JSON object with config, vocab and special_tokens", dict)
    try:
        config, entries = content["config"], list(content["vocab"])
        pattern, (size, first) = str(config["pattern"]), (int(config[name]) for name in _SIZES)
        specials = content.get("special_tokens") or ()
        named, ranks = [str(one["token_str"]) for one in specials], [one["rank"] for one in specials]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{FLAG} {path}: is no tekken.json of config, vocab and special_tokens ({error!r})") from error
    missing = [token for token in _ROLES if token not in named]
    if missing or ranks != list(range(len(named))) or len(named) > first:
        what = f"lack {' '.join(missing)}" if missing else f"must have ranks from 0 on, at most {first}"
        raise ValueError(f"{FLAG} {path}: its special_tokens {what}; take the model's own file")
    if not 0 < size - first <= len(entries):
        raise ValueError(f"{FLAG} {path}: has {len(entries)} tokens, where its sizes say {size} - {first}")
    special = (*named, *(f"<SPECIAL_{place}>" for place in range(len(named), first)))
    return _Tekken(path, pattern, size, special, entries[: size - first])


def facts(options: TokenizerOptions) -> Facts:
    """The file's size of the vocabulary, and the ids of its special tokens. Raises ValueError for a file that is
    missing, no JSON, lacks config or vocab, or has wrong sizes or special tokens; the bytes of the other tokens are not
    checked."""
    return _facts(_read(options.tokenizer_model or ""))


def _facts(tekken: _Tekken) -> Facts:
    ids = {role: tekken.special.index(token) for token, role in _ROLES.items()}
    others = tuple(place for place, token in enumerate(tekken.special) if token not in _ROLES)
    return Facts(tekken.size, eod=ids["eos"], additional_special_tokens_ids=others, **ids)


class TekkenTokenizer(RankedTokenizer):
    """Mistral's tokenizer, which never finds special tokens in text."""

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError for a file that is missing or damaged, ConfigError without the package."""
        tekken = _read(options.tokenizer_model or "")
        super().__init__(_facts(tekken))
        self._special = tekken.special
        self._ranks = ranks_of(tekken.path, tekken.entries, len(tekken.special))
        self._backend = self._encoding(
            options.tokenizer_type, pat_str=tekken.pattern, mergeable_ranks=self._ranks, special_tokens={}
        )

    def tokenize(self, text: str) -> list[int]:
        return self._backend.encode_ordinary(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, without special tokens. Raises ValueError for an id that no token has."""
        return self._backend.decode([one for one in self._known(token_ids) if one >= len(self._special)])
