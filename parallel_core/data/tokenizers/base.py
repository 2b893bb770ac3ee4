"""The protocol of every tokenizer and its settings, under Megatron's names."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Size and special ids of a vocabulary; an id is None where the vocabulary has no such token."""

    vocab_size: int
    """Number of ids, special tokens included, before padding for tensor parallelism."""
    eod: int | None = None
    """Id that ends each document."""
    pad: int | None = None
    """Id that fills up short samples."""
    bos: int | None = None
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    unk: int | None = None
    additional_special_tokens_ids: tuple[int, ...] = ()


class _Id:
    """An attribute of a tokenizer that is the special id of this name among its facts; None: it has none."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tokenizer: "MegatronTokenizer | None", owner: type) -> int | None:
        return None if tokenizer is None else getattr(tokenizer.facts, self._name)


class MegatronTokenizer(ABC):
    """Text to token ids and back."""

    pads_with_eos = False
    """Whether no token is for padding: `pad` is the end of a text, also where another token becomes that."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """The token ids of `text`, as a document of training data has them. Raises ValueError for text that has none,
        such as half a surrogate pair."""

    def tokenize_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`tokenize` of each text, faster where the library takes many at once. Raises as it."""
        return [self.tokenize(text) for text in texts]

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` stand for. Raises ValueError for an id that no token can have."""

    def _known(self, token_ids: Sequence[int], among: Container[int] | None = None) -> list[int]:
        """The ids, by default those below the size. Raises ValueError for one that no token has."""
        ids, known = [int(token_id) for token_id in token_ids], range(self.vocab_size) if among is None else among
        wrong = [token_id for token_id in ids if token_id not in known]
        if wrong:
            raise ValueError(f"token id {wrong[0]} is none of the tokenizer's {self.vocab_size}")
        return ids

    @property
    @abstractmethod
    def vocab(self) -> Mapping[str, int]:
        """Token to id."""

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        """Id to token."""
        return {token_id: token for token, token_id in self.vocab.items()}

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special` also those that the tokenizer puts around a text (BOS, EOS)."""
        return self.tokenize(text)

    def token_to_id(self, token: str) -> int | None:
        """The id of one token; None if it is none."""
        return self.vocab.get(token)

    def add_special_tokens(self, tokens: Sequence[str]) -> int:
        """Take each of `tokens` as one id wherever text has it; how many are new to the vocabulary."""
        raise ValueError(f"{type(self).__name__} takes no further tokens; use a HuggingFace tokenizer")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False, **variables: Any
    ) -> list[int]:
        """The ids of a conversation, as the tokenizer's own template writes it. Raises ValueError without one."""
        raise ValueError(f"{type(self).__name__} has no chat template; use a HuggingFace tokenizer or --prompt-type")

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included, before padding for tensor parallelism."""
        return self.facts.vocab_size

    @property
    def eod(self) -> int:
        """Id that ends each document. Raises ValueError if there is none."""
        if self.facts.eod is None:
            raise ValueError("the tokenizer has no token that ends a document; name it with --eos-token-id")
        return self.facts.eod

    pad = _Id("Id that fills up short samples.")
    bos = _Id("Id that begins a text.")
    eos = _Id("Id that ends a text.")
    cls = _Id("Id that stands for a whole text.")
    sep = _Id("Id between two texts.")
    mask = _Id("Id of a masked token.")
    unk = _Id("Id of text that the vocabulary lacks.")

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        """Ids of special tokens without a role above."""
        return list(self.facts.additional_special_tokens_ids)


@dataclass(frozen=True)
class TokenizerOptions:
    """The tokenizer flags of a run or of a tool."""

    tokenizer_type: str
    tokenizer_model: str | None = None
    """A model file, or a HuggingFace folder."""
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    """Ids that NullTokenizer has and TikTokenizer keeps."""
    vocab_extra_ids: int = 0
    """Tokens <extra_id_N> behind the vocabulary."""
    tokenizer_special_tokens: tuple[str, ...] | None = None
    """Tokens that are added (HuggingFace, SentencePiece) or that take the first ids (TikTokenizer)."""
    legacy_tokenizer: bool = False
    """Megatron's older tokenizers."""
    tokenizer_hf_include_special_tokens: bool | None = None
    """HuggingFace: put BOS and EOS around text as the folder says, and show special tokens; none: as the type does."""
    tokenizer_kwargs: tuple[str, ...] = ()
    """Names and values in turn that replace those of a folder's tokenizer_config.json."""
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    tokenizer_sentencepiece_legacy: bool = False
    """SentencePiece: look for special tokens in text."""
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int = -1
    sft_tokenizer_prompt_format: str = "nemotron-h-aligned"
    trust_remote_code: bool = False
    """Run the code of a HuggingFace folder that nothing else reads."""

    @staticmethod
    def of(source: Any, **more: Any) -> "TokenizerOptions":
        """The options among the attributes of parsed flags or of a config; those that are none are at their default."""
        given = {entry.name: getattr(source, entry.name, None) for entry in fields(TokenizerOptions)}
        values: dict[str, Any] = {name: value for name, value in {**given, **more}.items() if value is not None}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return TokenizerOptions(**{**values, **lists})
