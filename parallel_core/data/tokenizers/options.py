"""Settings of a tokenizer, under Megatron's names."""

from __future__ import annotations

from dataclasses import dataclass


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
    special_tokens: tuple[str, ...] | None = None
    """Tokens that are added (HuggingFace, SentencePiece) or that take the first ids (TikTokenizer)."""
    legacy: bool = False
    """Megatron's older tokenizers (--legacy-tokenizer)."""
    include_special_tokens: bool | None = None
    """HuggingFace: put BOS and EOS around text as the folder says, and show special tokens; none: as the type does."""
    kwargs: tuple[str, ...] = ()
    """Names and values in turn that HuggingFace's own loader would take."""
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    sentencepiece_legacy: bool = False
    """SentencePiece: look for special tokens in text."""
    sentencepiece_ignore_extra_whitespaces: bool = True
    null_eod_id: int | None = None
    null_pad_id: int | None = None
    prompt_format: str | None = None
    """Of SFTTokenizer."""
