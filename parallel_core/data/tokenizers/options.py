"""Settings of a tokenizer, under the names that Megatron's flags have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


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

    @property
    def legacy(self) -> bool:
        """Short for `legacy_tokenizer`."""
        return self.legacy_tokenizer

    @staticmethod
    def of(source: Any, **more: Any) -> TokenizerOptions:
        """The options among the attributes of parsed flags or of a config; those that are none are at their default."""
        given = {entry.name: getattr(source, entry.name, None) for entry in fields(TokenizerOptions)}
        values: dict[str, Any] = {name: value for name, value in {**given, **more}.items() if value is not None}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return TokenizerOptions(**{**values, **lists})
