"""The tokenizer flags of tools, by Megatron's and MindSpeed-LLM's names."""

from __future__ import annotations

import argparse

from parallel_core.data.tokenizers.options import TokenizerOptions
from parallel_core.data.tokenizers.registry import TOKENIZERS

_TEXTS = {
    "--tokenizer-type": ", ".join(TOKENIZERS),
    "--tokenizer-model": "a model's folder, or the tokenizer's model file",
    "--vocab-file": "of GPT2BPETokenizer",
    "--merge-file": "of GPT2BPETokenizer",
}
_ALIASES = {"--tokenizer-model": ("--tokenizer-name-or-path",)}


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """The flags from which `tokenizer_options` reads."""
    group = parser.add_argument_group("tokenizer")
    for flag, help in _TEXTS.items():
        group.add_argument(flag, *_ALIASES.get(flag, ()), help=help)
    group.add_argument("--vocab-size", type=int, help="of NullTokenizer: number of ids, without end of document")


def tokenizer_options(args: argparse.Namespace) -> TokenizerOptions:
    """The options that were given. Raises ValueError without a type."""
    if args.tokenizer_type is None:
        raise ValueError(f"--tokenizer-type: must be given; choose one of {', '.join(TOKENIZERS)}")
    return TokenizerOptions(
        args.tokenizer_type,
        tokenizer_model=args.tokenizer_model,
        vocab_file=args.vocab_file,
        merge_file=args.merge_file,
        vocab_size=args.vocab_size,
    )
