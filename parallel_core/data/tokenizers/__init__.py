"""Tokenizers by Megatron's names, and `build_tokenizer`, which picks one by its flag."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import MegatronTokenizer
from parallel_core.data.tokenizers.gpt2_bpe import GPT2BPETokenizer
from parallel_core.data.tokenizers.null import NullTokenizer

__all__ = ["TOKENIZERS", "GPT2BPETokenizer", "MegatronTokenizer", "NullTokenizer", "build_tokenizer"]


@dataclass(frozen=True)
class TokenizerType:
    """How a `--tokenizer-type` is made."""

    build: Callable[..., MegatronTokenizer]
    """Takes the options in `needs` by name."""
    needs: tuple[str, ...]
    """Options of `build_tokenizer` that must be given."""


TOKENIZERS: dict[str, TokenizerType] = {
    "GPT2BPETokenizer": TokenizerType(GPT2BPETokenizer, needs=("vocab_file", "merge_file")),
    "NullTokenizer": TokenizerType(NullTokenizer, needs=("vocab_size",)),
}
"""Every `--tokenizer-type` there is."""


def build_tokenizer(
    tokenizer_type: str,
    *,
    vocab_file: str | Path | None = None,
    merge_file: str | Path | None = None,
    vocab_size: int | None = None,
) -> MegatronTokenizer:
    """The tokenizer that Megatron's tokenizer flags describe.

    Raises ValueError for a type that doesn't exist and for an option that the type needs and wasn't given.
    """
    if tokenizer_type not in TOKENIZERS:
        raise ValueError(f"--tokenizer-type {tokenizer_type} is not available; choose one of {', '.join(TOKENIZERS)}")
    kind = TOKENIZERS[tokenizer_type]
    options: dict[str, Any] = {"vocab_file": vocab_file, "merge_file": merge_file, "vocab_size": vocab_size}
    missing = [name for name in kind.needs if options[name] is None]
    if missing:
        flags = " and ".join("--" + name.replace("_", "-") for name in missing)
        raise ValueError(f"--tokenizer-type {tokenizer_type} needs {flags}")
    return kind.build(**{name: options[name] for name in kind.needs})
