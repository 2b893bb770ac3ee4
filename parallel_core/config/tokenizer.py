"""Settings of a tokenizer beside its files."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class TokenizerConfig(Config):
    """How the tokenizer is read, and the tokens that are added to it."""

    legacy_tokenizer: bool = option("--legacy-tokenizer", False)
    """Megatron's older tokenizers: HuggingFace's and Llama2's begin texts with BOS, and special tokens show in text."""
    vocab_extra_ids: int = option("--vocab-extra-ids", 0, at_least=0)
    """Number of tokens <extra_id_N> behind the vocabulary."""
    tokenizer_special_tokens: list[str] | None = option("--tokenizer-special-tokens", None)
    """Tokens that are added to the vocabulary, or that have its first ids."""
    tokenizer_hf_include_special_tokens: bool | None = option("--tokenizer-hf-include-special-tokens", None)
    """Put BOS and EOS around each text as the HuggingFace folder says; none: as the kind of tokenizer does."""
    trust_remote_code: bool = option("--trust-remote-code", False)
    """Run the code of a HuggingFace folder that nothing else reads."""
    tiktoken_pattern: str | None = option("--tiktoken-pattern", None, choices=("v1", "v2"))
    """How text is cut into words; v2 also where the case of letters changes."""
    tiktoken_num_special_tokens: int = option("--tiktoken-num-special-tokens", 1000, at_least=3)
    """Ids in front of the vocabulary, for special tokens and placeholders."""
    tokenizer_sentencepiece_legacy: bool = option("--tokenizer-sentencepiece-legacy", False)
    """Look for the added special tokens in text."""
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = option(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces", True
    )
    """Drop the blanks that the SentencePiece model drops."""
    null_tokenizer_eod_id: int | None = option("--null-tokenizer-eod-id", None, at_least=0)
    """Id that ends a document; none: one more than the data's ids."""
    null_tokenizer_pad_id: int = option("--null-tokenizer-pad-id", -1, at_least=-1)
    """Id that fills up samples; -1: none."""
    sft_tokenizer_prompt_format: str = option(
        "--sft-tokenizer-prompt-format",
        "nemotron-h-aligned",
        choices=("nemotron-h-aligned", "nemotron-nano-v2", "identity", "default"),
    )
    """How conversations are written and which token fills up samples."""
