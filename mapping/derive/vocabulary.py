"""Config fields of the vocabulary: the number of ids of the tokenizer, and of rows of the embedding table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mapping.flags import BY_NAME
from parallel_core.config.base import Unknown
from parallel_core.data.tokenizers import TOKENIZERS, TokenizerOptions, findings, padded_vocab_size, training_vocab_size
from parallel_core.findings import Finding

_SIZED_BY_FLAG = {"NullTokenizer", "TikTokenizer"}
"""Types of tokenizers whose size follows from options alone, whatever their files hold."""


def _is_patched(args: Any) -> bool:
    """Whether Pai-Megatron-Patch's --patch-tokenizer-type says which tokenizer it is."""
    return bool(args.patch_tokenizer_type and not BY_NAME["--patch-tokenizer-type"].why_idle(args))


def tokenizer_type(args: Any) -> str | None:
    """The type of tokenizer: with Pai-Megatron-Patch's --patch-tokenizer-type the one of the model's folder,
    PretrainedFromHF, unless --tokenizer-type is given and none of --tokenizer-model, --tokenizer-name-or-path and
    --load; else --tokenizer-type; else GPT2BPETokenizer with --vocab-file and --merge-file; else None."""
    if _is_patched(args):
        return "PretrainedFromHF"
    has_pairs = args.vocab_file is not None and args.merge_file is not None
    return args.tokenizer_type or ("GPT2BPETokenizer" if has_pairs else None)


def tokenizer_model(args: Any) -> Any:
    """The path of the tokenizer's file or folder: by --tokenizer-model, else by --tokenizer-name-or-path, else with
    --patch-tokenizer-type by --load; None: not given."""
    path = args.tokenizer_model or args.tokenizer_name_or_path
    return args.load if _is_patched(args) and not path else path


def _options(args: Any) -> TokenizerOptions | None:
    kind = tokenizer_type(args)
    if kind is None:
        return None
    special = args.special_tokens or args.tiktoken_special_tokens
    return TokenizerOptions.of(
        args, tokenizer_type=kind, tokenizer_model=tokenizer_model(args), tokenizer_special_tokens=special
    )


def tokenizer_findings(args: Any) -> Iterator[Finding]:
    """Findings about further flags that the type of tokenizer needs and that are missing."""
    options = _options(args)
    if _is_patched(args) and tokenizer_model(args) is None:
        rule = "needs --load or --tokenizer-model, the folder of the tokenizer"
        yield Finding("--patch-tokenizer-type", args.patch_tokenizer_type, rule, "add it")
    elif options is not None and options.tokenizer_type in TOKENIZERS:
        yield from findings(options)


def vocabulary(args: Any) -> Any:
    """The number of ids that training makes room for: --vocab-size, but for NullTokenizer and TikTokenizer; else that
    of the tokenizer (`training_vocab_size`). --extra-vocab-size is added.

    `Unknown` if only files say it and they are not to be looked at, or if the tokenizer's size cannot be told
    (`training_vocab_size` raises ValueError); None if nothing says it, or it follows from the tokenizer and its type is
    not there, or flags that it needs are missing.
    """
    options = _options(args)
    sized_by_flag = args.vocab_size is not None and (options is None or options.tokenizer_type not in _SIZED_BY_FLAG)
    if sized_by_flag:
        return args.vocab_size + (args.extra_vocab_size or 0)
    if options is None or any(findings(options)):
        return None
    if not args.look_at_files and options.tokenizer_type not in _SIZED_BY_FLAG:
        return Unknown()
    try:
        return training_vocab_size(options) + (args.extra_vocab_size or 0)
    except ValueError:
        return Unknown()


def unreadable(args: Any, check_files: bool) -> Iterator[Finding]:
    """A finding with the reason why the size of the tokenizer, of a known type and with the flags that it needs, cannot
    be told, such as a damaged file. With check_files there is none if a file is missing. Without it a missing file is
    such a reason, too, and there is no finding if a flag gives the size of the vocabulary."""
    options = _options(args)
    if options is None or any(findings(options)):
        return
    paths = [path for path in (options.vocab_file, options.merge_file, options.tokenizer_model) if path]
    said = (args.vocab_size, args.padded_vocab_size, args.pad_vocab_size_to)
    if all(Path(path).exists() for path in paths) if check_files else not any(size is not None for size in said):
        try:
            training_vocab_size(options)
        except ValueError as error:
            yield Finding("--tokenizer-type", args.patch_tokenizer_type or args.tokenizer_type, str(error))


def padded_vocabulary(args: Any) -> Any:
    """The number of rows of the embedding table: --padded-vocab-size or --pad-vocab-size-to, else the ids padded to a
    multiple of `make_vocab_size_divisible_by` x tensor-parallel size; Unknown and None as in `vocabulary`."""
    exact = args.padded_vocab_size or args.pad_vocab_size_to
    size = exact if exact is not None else vocabulary(args)
    if exact is not None or size is None or isinstance(size, Unknown):
        return size
    return padded_vocab_size(size, args.make_vocab_size_divisible_by or 128, args.tensor_model_parallel_size or 1)
