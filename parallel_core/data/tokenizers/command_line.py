"""The tokenizer flags of tools, by the names that Megatron, MindSpeed-LLM and Pai-Megatron-Patch give them."""

import argparse
from typing import Any

from parallel_core.data.tokenizers.base import TokenizerOptions
from parallel_core.data.tokenizers.registry import TOKENIZERS

_SWITCH = {"action": "store_true", "default": None}
_LIST = {"nargs": "+"}
_INT = {"type": int}

_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--tokenizer-type",), {}, ", ".join(TOKENIZERS)),
    (("--tokenizer-model", "--tokenizer-name-or-path"), {}, "a model's folder, or the tokenizer's model file"),
    (("--vocab-file",), {}, "of GPT2BPETokenizer and BertWordPiece*"),
    (("--merge-file",), {}, "of GPT2BPETokenizer"),
    (("--vocab-size",), _INT, "of NullTokenizer: number of ids, without end of document; of TikTokenizer: with all"),
    (("--vocab-extra-ids",), _INT, "number of tokens <extra_id_N> behind the vocabulary"),
    (("--tokenizer-special-tokens", "--tiktoken-special-tokens"), _LIST, "tokens that are added, or in front"),
    (("--legacy-tokenizer",), _SWITCH, "Megatron's older tokenizers"),
    (("--tokenizer-hf-include-special-tokens",), _SWITCH, "BOS and EOS around text as the folder says"),
    (("--tokenizer-kwargs",), _LIST, "names and values in turn for HuggingFace's loader"),
    (("--trust-remote-code",), _SWITCH, "run the code of a HuggingFace folder that nothing else reads"),
    (("--tiktoken-pattern",), {}, "v1 or v2: how text is cut into words"),
    (("--tiktoken-num-special-tokens",), _INT, "ids in front of the vocabulary"),
    (("--tokenizer-sentencepiece-legacy",), _SWITCH, "look for --tokenizer-special-tokens in text"),
    (("--null-tokenizer-eod-id",), _INT, "of NullTokenizer"),
    (("--null-tokenizer-pad-id",), _INT, "of NullTokenizer"),
    (("--sft-tokenizer-prompt-format",), {}, "of SFTTokenizer"),
    (("--patch-tokenizer-type",), {}, "Pai-Megatron-Patch's name for the tokenizer in the folder of --load"),
)
_OFF = {
    "--tokenizer-hf-no-include-special-tokens": "tokenizer_hf_include_special_tokens",
    "--no-tokenizer-sentencepiece-ignore-extra-whitespaces": "tokenizer_sentencepiece_ignore_extra_whitespaces",
}
_NO_EFFECT = ("--tokenizer-hf-use-fast", "--tokenizer-hf-no-use-fast", "--tokenizer-not-use-fast")
"""Flags without effect: a tokenizer.json is read by its own library in any case."""


def add_tokenizer_flags(parser: argparse.ArgumentParser, leave_out: str | None = None) -> None:
    """Add the flags that `tokenizer_options` reads, and flags without effect; but not --load, nor the flag `leave_out`,
    such as "--vocab-size" (flags that switch something off are added in any case)."""
    group = parser.add_argument_group("tokenizer")
    for names, how, help in (row for row in _FLAGS if leave_out not in row[0]):
        group.add_argument(*names, **how, help=help)
    for name, attribute in _OFF.items():
        group.add_argument(name, dest=attribute, action="store_false", default=None, help="switches it off")
    for name in _NO_EFFECT:
        group.add_argument(name, action="store_true", help=argparse.SUPPRESS)


def tokenizer_options(args: argparse.Namespace) -> TokenizerOptions:
    """The options of parsed flags; with --patch-tokenizer-type the HuggingFace tokenizer of --tokenizer-model, or of
    --load. Raises ValueError without a type."""
    kind, more = args.tokenizer_type, {}
    if args.patch_tokenizer_type is not None:
        kind, more = "PretrainedFromHF", {"tokenizer_model": args.tokenizer_model or getattr(args, "load", None)}
    if kind is None:
        raise ValueError(f"--tokenizer-type: must be given; choose one of {', '.join(TOKENIZERS)}")
    return TokenizerOptions.of(args, tokenizer_type=kind, **more)
