"""The protocol of every tokenizer and its settings, under Megatron's names."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Size (with special tokens, before padding) and special ids of a vocabulary: `eod` ends a document of training
    data, `eos` a text; an id is None where none is known."""

    vocab_size: int
    """The number of ids, special tokens included, before padding for tensor parallelism."""
    eod: int | None = None
    """The id that ends a document of training data."""
    pad: int | None = None
    """The id that fills up short samples."""
    bos: int | None = None
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    unk: int | None = None
    additional_special_tokens_ids: tuple[int, ...] = ()


class _Id:
    """An attribute of a tokenizer that reads the special id of the same name from its facts; None: the vocabulary has
    none."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tokenizer: "MegatronTokenizer | None", owner: type) -> int | None:
        return None if tokenizer is None else getattr(tokenizer.facts, self._name)


class MegatronTokenizer(ABC):
    """The interface of all tokenizers: text to token ids and back."""

    pads_with_eos = False
    """Whether this is a tokenizer of a HuggingFace folder that names no token of padding. Fine-tuning then pads with
    the token that ends a text, the template's where it names another one than the tokenizer."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """The token ids of `text` as a document of training data. Raises ValueError for a text that the tokenizer
        cannot encode: for many kinds one with half a surrogate pair."""

    def tokenize_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, as `tokenize` gives them; faster where the library takes many at once. Raises
        ValueError as `tokenize`."""
        return [self.tokenize(text) for text in texts]

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`; some tokenizers leave special tokens out. Raises ValueError for an id that no token
        has; HuggingFace tokenizers leave such an id out if it is from 0 to 2^32 - 1, NullTokenizer writes any, and
        for a folder's own code this is its own matter."""

    def _known(self, token_ids: Sequence[int], among: Container[int] | None = None) -> list[int]:
        """The ids as a list of int. Raises ValueError for one that is not in `among`, by default all ids below the
        vocabulary's size."""
        ids, known = [int(token_id) for token_id in token_ids], range(self.vocab_size) if among is None else among
        wrong = [token_id for token_id in ids if token_id not in known]
        if wrong:
            raise ValueError(f"token id {wrong[0]} is none of the tokenizer's {self.vocab_size}")
        return ids

    @property
    @abstractmethod
    def vocab(self) -> Mapping[str, int]:
        """Token -> id; of several tokens that read alike (parts of characters) one."""

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        """Id -> token, for all tokens of `vocab`."""
        return {token_id: token for token, token_id in self.vocab.items()}

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The token ids of `text`; with `special` also those that the tokenizer puts around a text (BOS, EOS). Raises
        ValueError as `tokenize`."""
        return self.tokenize(text)

    def token_to_id(self, token: str) -> int | None:
        """The id of a single token; None if the vocabulary lacks it."""
        return self.vocab.get(token)

    def add_special_tokens(self, tokens: Sequence[str]) -> int:
        """Let each of `tokens` be one id where it is found in a text, and return how many are new to the vocabulary.
        Raises ValueError for a tokenizer that takes no further tokens."""
        raise ValueError(f"{type(self).__name__} takes no further tokens; use a HuggingFace tokenizer")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False, **variables: Any
    ) -> list[int]:
        """The ids of a conversation as the tokenizer's own chat template writes it. messages: with "role" and
        "content". add_generation_prompt: up to where the assistant answers. variables: further variables of the
        template. Raises ValueError without a template, or for a conversation that it does not take; ConfigError without
        jinja2."""
        raise ValueError(f"{type(self).__name__} has no chat template; use a HuggingFace tokenizer or --prompt-type")

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included, before padding for tensor parallelism."""
        return self.facts.vocab_size

    @property
    def eod(self) -> int:
        """The id that ends a document of training data. Raises ValueError if there is none."""
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
        """The ids of further special tokens, as `facts` lists them; some may have a role, too."""
        return list(self.facts.additional_special_tokens_ids)


@dataclass(frozen=True)
class TokenizerOptions:
    """The tokenizer flags of a run or of a tool."""

    tokenizer_type: str
    tokenizer_model: str | None = None
    """Path of a model file or of a HuggingFace folder."""
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    """NullTokenizer: the number of ids, without the end of a document unless null_tokenizer_eod_id names one of them;
    TikTokenizer: the number of ids that are kept."""
    vocab_extra_ids: int = 0
    """The number of tokens <extra_id_N> that are added behind the vocabulary of BertWordPiece* and of Megatron's older
    SentencePieceTokenizer."""
    tokenizer_special_tokens: tuple[str, ...] | None = None
    """Tokens that are added (HuggingFace, SentencePiece) or that take the first ids (TikTokenizer)."""
    legacy_tokenizer: bool = False
    """Whether to behave as Megatron's older tokenizers."""
    tokenizer_hf_include_special_tokens: bool | None = None
    """HuggingFace: whether to put BOS and EOS around text as the folder says, and show special tokens; None: by the
    type."""
    tokenizer_kwargs: tuple[str, ...] = ()
    """Names and values in turn that replace those of a folder's tokenizer_config.json."""
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    tokenizer_sentencepiece_legacy: bool = False
    """SentencePiece: whether special tokens are looked for in text."""
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = True
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int = -1
    sft_tokenizer_prompt_format: str = "nemotron-h-aligned"
    trust_remote_code: bool = False
    """Whether to run the code of a HuggingFace folder that nothing else reads."""

    @staticmethod
    def of(source: Any, **more: Any) -> "TokenizerOptions":
        """The options among the attributes of `source`, parsed flags or a config, and those in `more`, which go before:
        also where `more` has None for an option, which is then at its default whatever `source` has. Options that are
        missing, or None, are at their defaults; `tokenizer_type`, which has none, must be given."""
        given = {entry.name: getattr(source, entry.name, None) for entry in fields(TokenizerOptions)}
        values: dict[str, Any] = {name: value for name, value in {**given, **more}.items() if value is not None}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return TokenizerOptions(**{**values, **lists})
