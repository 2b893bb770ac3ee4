"""A HuggingFace tokenizer's folder, read as transformers 4 reads it, without any library.

The package `tokenizers` reads `tokenizer.json` alone (`slow_files` makes its content where there is none); transformers
adds the tokens that `tokenizer_config.json` has beside it, and gives them their roles. Where `tokenizer_config.json`
has no added_tokens_decoder, the entries of `special_tokens_map.json` replace its entries of the same names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers import slow_files
from parallel_core.data.tokenizers.base import Facts
from parallel_core.data.tokenizers.json_files import is_id, read_json, token_ids
from parallel_core.data.tokenizers.sentence_piece_model import FLAG
from parallel_core.data.tokenizers.slow_files import SLOW_CLASSES


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before the model cuts the rest, with HuggingFace's properties. normalized: it is
    looked for in the normalised text, not in the text as it is."""

    content: str
    special: bool = False
    normalized: bool = True
    """Whether it is looked for in the normalised text, not in the text as it is."""
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @staticmethod
    def of(entry: Any, **default: bool) -> "AddedToken":
        """The token that a file's entry describes: a text, or an object with "content" and properties. default: values
        of properties that the entry does not give. Raises ValueError for an entry that is neither."""
        given = {"content": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("content"), str):
            raise ValueError(f"expected a token, not {str(entry)[:40]!r}")
        switches = ("special", "normalized", "lstrip", "rstrip", "single_word")
        return AddedToken(
            given["content"], **{**default, **{name: bool(given[name]) for name in switches if name in given}}
        )


ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles of special tokens, in the order in which transformers adds them."""

_OF_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_OF_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_DEFAULTS: dict[str, dict[str, str]] = {
    "BertTokenizer": _OF_BERT,
    "LlamaTokenizer": _OF_LLAMA,
    "CodeLlamaTokenizer": _OF_LLAMA,
    "GemmaTokenizer": {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"},
    "GPT2Tokenizer": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "Qwen2Tokenizer": dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>"),
    "T5Tokenizer": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
}
"""Class in tokenizer_config.json -> role -> its token where no file says it."""


_SPECIAL = {"special": True, "normalized": False}
"""Properties of a token with a role where the file says none."""


class HuggingFaceFolder:
    """The content of `tokenizer.json`, or one made of the files that take its place (`content`), and the settings
    (`config`): the entries of tokenizer_config.json; before these go, if it has no added_tokens_decoder, those of
    special_tokens_map.json, and before both the user's. Without tokenizer.json `slow_files.read` adds further ones."""

    def __init__(self, path: str | Path, settings: Sequence[str] = ()) -> None:
        """Read the folder `path`, or the one around the file `path` if that is a tokenizer.json. settings: names and
        values in turn that replace those of tokenizer_config.json.

        Raises ValueError naming the file that is missing or damaged, and for a name in `settings` without a value.
        """
        self.path = Path(path)
        if self.path.name == "tokenizer.json":
            self.path = self.path.parent
        if not self.path.is_dir():
            raise ValueError(
                f"{FLAG} {path}: is no folder, and nothing is fetched from a hub; give the model's folder, with its "
                "tokenizer.json"
            )
        self.file = self.path / "tokenizer.json"
        self.config = {**_settings(self.path), **pairs(settings)}
        if self.file.is_file():
            self.content = read_json(FLAG, self.file, "a HuggingFace tokenizer", dict)
        elif slow_files.is_readable(self.path, self.config):
            self.content, self.config = slow_files.read(self.path, self.config)
            self.file = self.path / SLOW_CLASSES[self.kind].files[0]
        else:
            known = ", ".join(f"{name} ({' and '.join(kind.files)})" for name, kind in SLOW_CLASSES.items())
            raise ValueError(
                f"{FLAG} {path}: has no tokenizer.json, and no files of a tokenizer_class that is read without it "
                f"({known}); write one with transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...), give a tokenizer.model with --tokenizer-type "
                "Llama2Tokenizer, or let code of the folder's own run with --trust-remote-code"
            )

    @property
    def kind(self) -> str:
        """The name of the tokenizer's class, without "Fast": as the settings have it; where they have none and there is
        no tokenizer.json either, as config.json tells. "": no file tells it."""
        return str(self.config.get("tokenizer_class") or "").removesuffix("Fast")

    @cached_property
    def model_vocab(self) -> dict[str, int]:
        """Token -> id in the vocabulary of the model itself. Raises ValueError if `content` has no valid one."""
        model = self.content.get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocab, list):
            pieces = [piece[0] for piece in vocab if isinstance(piece, list) and piece]
            if len(pieces) == len(vocab) and all(isinstance(piece, str) for piece in pieces):
                return {piece: number for number, piece in enumerate(pieces)}
        return token_ids(FLAG, self.file, vocab)

    @cached_property
    def named(self) -> dict[str, AddedToken]:
        """Role -> the token that has it: the entry in the settings (null: none); for a role without an entry the
        default of the class, if that is one of those known here. Roles without a token are left out. Raises ValueError
        for an entry that is no token."""
        given = {role: self.config.get(f"{role}_token") for role in ROLES}
        defaults = _DEFAULTS.get(self.kind, {})
        named = {role: defaults.get(role) if f"{role}_token" not in self.config else given[role] for role in ROLES}
        return {role: self._token(entry, **_SPECIAL) for role, entry in named.items() if entry is not None}

    @cached_property
    def additional(self) -> list[AddedToken]:
        """The additional special tokens: additional_special_tokens in the settings; without that entry none, but for T5
        without tokenizer.json the tokens <extra_id_N>. Raises ValueError for an entry that is neither empty nor a list
        of tokens."""
        entries = self.config.get("additional_special_tokens") or []
        if not isinstance(entries, list):
            raise ValueError(f"{FLAG} {self.path / 'tokenizer_config.json'}: additional_special_tokens must be a list")
        return [self._token(entry, **_SPECIAL) for entry in entries]

    def _token(self, entry: Any, **default: bool) -> AddedToken:
        try:
            return AddedToken.of(entry, **default)
        except ValueError as error:
            raise ValueError(f"{FLAG} {self.path / 'tokenizer_config.json'}: {error}") from error

    @cached_property
    def in_json(self) -> dict[str, int]:
        """Token -> id of the added_tokens in `content`. Raises ValueError if these are neither empty nor a list of
        tokens with ids."""
        entries = self.content.get("added_tokens") or []
        if not isinstance(entries, list) or not all(_is_added(entry) for entry in entries):
            raise ValueError(f"{FLAG} {self.file}: added_tokens must be a list of objects with id and content")
        return {entry["content"]: entry["id"] for entry in entries}

    def beside(self) -> Iterator[AddedToken]:
        """The tokens that the settings add to those in `content`, in transformers' order: those of
        added_tokens_decoder by their ids, those with roles (`named`), additional ones; each once, without those in
        added_tokens of `content`. Raises ValueError for entries that are no tokens, or are not under ids."""
        seen = set(self.in_json)
        entries = self.config.get("added_tokens_decoder") or {}
        if not isinstance(entries, Mapping) or not all(str(number).isdecimal() for number in entries):
            raise ValueError(
                f"{FLAG} {self.path / 'tokenizer_config.json'}: added_tokens_decoder must map ids to tokens"
            )
        by_id = [self._token(entries[number]) for number in sorted(entries, key=int)]
        for token in (*by_id, *self.named.values(), *self.additional):
            if token.content not in seen:
                seen.add(token.content)
                yield token

    def chat_template(self) -> str | None:
        """The template of conversations (Jinja): chat_template.jinja, else chat_template in the settings, which is the
        template or a list of templates with names, of which the one named default counts; None without one."""
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
        given = self.config.get("chat_template")
        if isinstance(given, list):
            named = [one.get("template") for one in given if isinstance(one, dict) and one.get("name") == "default"]
            given = named[-1] if named else None
        return given if isinstance(given, str) else None

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Token -> id, with all tokens that the folder's files add to the model's."""
        vocab = {**self.model_vocab, **self.in_json}
        for token in self.beside():
            add(vocab, len(self.model_vocab), token.content)
        return vocab

    def facts(self) -> Facts:
        """Size, with the tokens that the folder's files add, and special ids; the token that ends a text (eos) ends a
        document, too."""
        ids = {role: self.vocab.get(token.content) for role, token in self.named.items()}
        others = tuple(self.vocab[token.content] for token in self.additional)
        return Facts(len(self.vocab), eod=ids.get("eos"), additional_special_tokens_ids=others, **ids)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer.json, or the files of a class that is read without one
    (`slow_files.is_readable`). Raises ValueError naming a damaged file of its settings; these are read if there is no
    tokenizer.json."""
    return (folder / "tokenizer.json").is_file() or slow_files.is_readable(folder, _settings(folder))


def _settings(folder: Path) -> dict[str, Any]:
    """The entries of tokenizer_config.json; where it has no added_tokens_decoder those of special_tokens_map.json, too,
    which replace its entries of the same names."""
    found: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if "added_tokens_decoder" not in found and (folder / name).is_file():
            found |= read_json(FLAG, folder / name, "a JSON object", dict)
    return found


def pairs(settings: Sequence[str]) -> dict[str, Any]:
    """Name -> value from a list of names and values in turn; a value that is the word True, False or None becomes that
    constant, another stays text. Raises ValueError for a name without a value."""
    if len(settings) % 2:
        raise ValueError(f"--tokenizer-kwargs {' '.join(settings)}: must be names and values in turn; add a value")
    words = {"True": True, "False": False, "None": None}
    return {name: words.get(value, value) for name, value in zip(settings[::2], settings[1::2], strict=True)}


def _is_added(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("content"), str) and is_id(entry.get("id"))


def add(vocab: dict[str, int], entries_of_model: int, token: str) -> bool:
    """Add a token to `vocab`, unless it is there, and return whether it is new. Its id is `entries_of_model`, the
    number of the model's own tokens, or 1 above the largest id if there are ids from that number on."""
    if token in vocab:
        return False
    added = [token_id for token_id in vocab.values() if token_id >= entries_of_model]
    vocab[token] = max(added, default=entries_of_model - 1) + 1
    return True
