"""All values of `--tokenizer-type`, and the tokenizers that they select."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from parallel_core.data.tokenizers import gpt2_bpe, huggingface, null, sentence_piece, sft, tekken, tiktoken, word_piece
from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.library import missing_library
from parallel_core.findings import ConfigError, Finding


@dataclass(frozen=True)
class TokenizerType:
    """A `--tokenizer-type`: the functions that make its tokenizer and its facts, the names of the options that it
    needs (`needs`), and the package that encodes and decodes (`library`; None: it needs no package)."""

    build: Callable[[TokenizerOptions], MegatronTokenizer]
    facts: Callable[[TokenizerOptions], Facts]
    """Gives size and special ids, without any library but for a folder's own code that is trusted."""
    needs: tuple[str, ...]
    """Names of the options that must be given."""
    library: str | None = None
    """The package that encodes and decodes; None: none is needed."""


_HUGGINGFACE = TokenizerType(huggingface.build, huggingface.facts, ("tokenizer_model",), library="tokenizers")
_SENTENCE_PIECE = TokenizerType(
    sentence_piece.SentencePieceTokenizer, sentence_piece.facts, ("tokenizer_model",), library="sentencepiece"
)
_BERT = TokenizerType(word_piece.BertWordPieceTokenizer, word_piece.facts, ("vocab_file",), library="tokenizers")

TOKENIZERS: dict[str, TokenizerType] = {
    "BertWordPieceCase": _BERT,
    "BertWordPieceLowerCase": _BERT,
    "GPT2BPETokenizer": TokenizerType(
        gpt2_bpe.GPT2BPETokenizer, gpt2_bpe.facts, ("vocab_file", "merge_file"), library="tokenizers"
    ),
    "GPTSentencePieceTokenizer": _SENTENCE_PIECE,
    "HuggingFaceTokenizer": _HUGGINGFACE,
    "Llama2Tokenizer": _SENTENCE_PIECE,
    "MagistralTokenizer": TokenizerType(tekken.TekkenTokenizer, tekken.facts, ("tokenizer_model",), library="tiktoken"),
    "NullTokenizer": TokenizerType(null.NullTokenizer, null.facts, ("vocab_size",)),
    "PretrainedFromHF": _HUGGINGFACE,
    "SFTTokenizer": TokenizerType(sft.SFTTokenizer, sft.facts, ("tokenizer_model",), library="tokenizers"),
    "SentencePieceTokenizer": _SENTENCE_PIECE,
    "TikTokenizer": TokenizerType(tiktoken.TikTokenizer, tiktoken.facts, ("tokenizer_model",), library="tiktoken"),
}
"""--tokenizer-type -> its type."""


def findings(options: TokenizerOptions, encodes: bool = False) -> Iterator[Finding]:
    """The findings about a type that doesn't exist, or about options that the type needs and that aren't given; with
    `encodes`, for code that encodes or decodes text, also about the type's package, if that isn't installed."""
    kind = TOKENIZERS.get(options.tokenizer_type)
    if kind is None:
        rule = "is not available"
        yield Finding("--tokenizer-type", options.tokenizer_type, rule, f"choose one of {', '.join(TOKENIZERS)}")
        return
    missing = [name for name in kind.needs if getattr(options, name) is None]
    if missing:
        flags = " and ".join("--" + name.replace("_", "-") for name in missing)
        yield Finding("--tokenizer-type", options.tokenizer_type, f"needs {flags}", "add it")
    finding = missing_library(options.tokenizer_type, kind.library) if encodes else None
    if finding is not None:
        yield finding


def _check(options: TokenizerOptions, encodes: bool) -> TokenizerType:
    wrong = list(findings(options, encodes))
    if wrong:
        raise ConfigError(wrong)
    return TOKENIZERS[options.tokenizer_type]


def build_tokenizer(options: TokenizerOptions) -> MegatronTokenizer:
    """The tokenizer that the options describe.

    Raises ConfigError for a type that doesn't exist, options that are missing and a package that isn't installed,
    ValueError for a file that is missing or damaged, and where the type refuses the values of its options, alone or
    together. Options of other types are not looked at.
    """
    return _check(options, encodes=True).build(options)


def facts(options: TokenizerOptions) -> Facts:
    """Size and special ids of the tokenizer. No package is needed, except `transformers` where it loads a folder whose
    own code is trusted. Raises ConfigError for a type that doesn't exist, options that are missing, and if that package
    is needed and not installed; ValueError as `build_tokenizer`, but for fewer mistakes: a --merge-file, for one, is
    not read."""
    return _check(options, encodes=False).facts(options)


def padded_vocab_size(size: int, divisible_by: int = 128, tensor_parallel: int = 1) -> int:
    """The rows of the embedding for `size` ids: the smallest multiple of --make-vocab-size-divisible-by x
    tensor-parallel size that is not below `size`."""
    multiple = divisible_by * tensor_parallel
    return ceil(size / multiple) * multiple


def training_vocab_size(options: TokenizerOptions) -> int:
    """The number of ids that the tokenizer needs in training: the larger of its own number and that of Megatron's older
    tokenizer (--legacy-tokenizer), by which Megatron 0.16.1 sizes the vocabulary. Raises as `facts`."""
    kind = _check(options, encodes=False)
    return max(kind.facts(one).vocab_size for one in (options, replace(options, legacy_tokenizer=True)))
