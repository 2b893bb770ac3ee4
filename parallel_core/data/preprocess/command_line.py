"""Turn text into Megatron's `.bin`/`.idx` files.

    python -m mapping preprocess --input FILE|DIR|PATTERN --output-prefix PREFIX \\
        --tokenizer-type HuggingFaceTokenizer --tokenizer-model FOLDER --append-eod --workers 4

writes `PREFIX_text_document.bin` and `.idx`: train with `--data-path PREFIX_text_document`. With `--handler-name`, or
`--tokenizer-type PretrainedFromHF`, it takes flags of MindSpeed-LLM's `preprocess_data.py` and writes data in its form.

    python -m mapping preprocess merge --help        several data sets in one
    python -m mapping preprocess inspect --help      what is in a data set
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from parallel_core.data.instruction.options import InstructionOptions, add_instruction_flags
from parallel_core.data.instruction.preprocess import data_set, preprocess_instructions
from parallel_core.data.preprocess.inspect import report
from parallel_core.data.preprocess.merge import merge, prefixes_in
from parallel_core.data.preprocess.text import TextOptions, preprocess_text
from parallel_core.data.tokenizers import build_tokenizer
from parallel_core.data.tokenizers.command_line import add_tokenizer_flags, tokenizer_options
from parallel_core.system.command_line import INTERRUPTED, command_line, program

_PROGRAM = program("preprocess")
_REFUSED_OF_TEXT = {
    "split_sentences": "sentences are not split; give lists of them as the text: each becomes a sequence",
    "find_optimal_num_workers": "nothing is tried; give --workers as many as there are cores",
}


def main(arguments: list[str] | None = None) -> int:
    """Run `preprocess` with these arguments (None: the process's), and return 0, or 130 after Ctrl-C at work. Exits
    with 2 and the reason for wrong flags, and after a ValueError or OSError."""
    given = sys.argv[1:] if arguments is None else arguments
    name, rest = (given[0], given[1:]) if given and given[0] in _COMMANDS else ("", given)
    parser, work = _COMMANDS[name]()
    args = parser.parse_args(rest)
    try:
        work(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("stopped" if name else "stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return 0


_Command = tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], None]]


def _preprocess_command() -> _Command:
    parser = command_line(
        __doc__, _PROGRAM, f"{_PROGRAM} --input FILE --output-prefix PREFIX --tokenizer-type TYPE ..."
    )
    parser.add_argument("--input", required=True, help="file, directory of files, or pattern: .jsonl, .parquet, text")
    parser.add_argument("--output-prefix", type=Path, required=True, help="start of the names of the files written")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="fields of a .jsonl line that hold text")
    parser.add_argument("--append-eod", action="store_true", help="end every document with the end-of-document id")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenise")
    parser.add_argument(
        "--partitions", type=int, default=1, help="deal lines out to so many parts, one after the other"
    )
    parser.add_argument("--keep-sequential-samples", action="store_true", help="--partitions keeps the order of lines")
    parser.add_argument("--restart", action="store_true", help="begin anew where an earlier run was stopped")
    parser.add_argument("--lang", help="without effect: is a part of --split-sentences")
    parser.add_argument("--find-optimal-num-workers", action="store_true", help=argparse.SUPPRESS)
    for flag in ("--workers-to-check", "--max-documents", "--performance-dir"):
        parser.add_argument(flag, nargs="+", help=argparse.SUPPRESS)
    add_tokenizer_flags(parser)
    add_instruction_flags(parser)
    return parser, _preprocess


def _preprocess(args: argparse.Namespace) -> None:
    if args.handler_name or args.tokenizer_type == "PretrainedFromHF":  # these are MindSpeed-LLM's flags
        _preprocess_instructions(args)
        return
    refused = [f"--{name.replace('_', '-')}: {why}" for name, why in _REFUSED_OF_TEXT.items() if getattr(args, name)]
    if refused:
        raise ValueError("; ".join(refused))
    given = {name: getattr(args, name) for name in TextOptions.__dataclass_fields__ if hasattr(args, name)}
    given |= {"json_keys": tuple(args.json_keys), "skips_bad_records": args.on_bad_record == "skip"}
    options = TextOptions(**given, tokenizer=tokenizer_options(args))
    done = preprocess_text(options)
    if done.left_out:
        print(f"{done.left_out} records left out, such as:", *done.wrong, sep="\n  ")
    for count, prefix in zip(done.tokens, options.prefixes, strict=True):
        print(f"{done.documents} documents, {count} tokens written: --data-path {prefix}")
    if done.documents == 1:
        print("a split has whole documents: train on one by --split 100,0,0, or give more, such as one in each line")


def _preprocess_instructions(args: argparse.Namespace) -> None:
    """Preprocess with a handler of MindSpeed-LLM's, and report the outcome of the records."""
    options = InstructionOptions.of(args)
    print("\n".join(preprocess_instructions(options, tokenizer_options(args)).lines()))
    is_packed = options.prefix != options.output_prefix
    path = options.output_prefix if is_packed else data_set(options.prefix, options.keys[0])
    print(f"written: {'--is-instruction-dataset ' if is_packed else ''}--data-path {path}")


def _merge_command() -> _Command:
    parser = command_line(
        "Write several data sets into one.", f"{_PROGRAM} merge", f"{_PROGRAM} merge PREFIX... --output-prefix PREFIX"
    )
    parser.add_argument("prefixes", nargs="*", help="data sets, in this order; or --input")
    parser.add_argument("--input", type=Path, help="a folder: its data sets, in the order of their names")
    parser.add_argument("--output-prefix", required=True, help="the new data set")
    parser.add_argument("--multimodal", action="store_true", help="without effect: an .idx file says what it is")
    return parser, _merge


def _merge(args: argparse.Namespace) -> None:
    if bool(args.prefixes) == (args.input is not None):
        raise ValueError("give either data sets or --input")
    prefixes = args.prefixes or prefixes_in(args.input)
    index = merge(prefixes, args.output_prefix)
    documents, tokens = len(index.document_indices) - 1, int(index.sequence_lengths.sum(dtype="int64"))
    print(f"{len(prefixes)} data sets, {documents} documents, {tokens} tokens: --data-path {args.output_prefix}")


def _inspect_command() -> _Command:
    parser = command_line(
        "Show what is in a data set.",
        f"{_PROGRAM} inspect",
        f"{_PROGRAM} inspect PREFIX [--samples N] [tokenizer flags]",
    )
    parser.add_argument("prefix", help="path without .bin and .idx, as for --data-path")
    parser.add_argument("--samples", type=int, default=1, help="sequences to show, as text if a tokenizer is given")
    add_tokenizer_flags(parser)
    return parser, _inspect


def _inspect(args: argparse.Namespace) -> None:
    tokenizer = build_tokenizer(tokenizer_options(args)) if args.tokenizer_type or args.patch_tokenizer_type else None
    for line in report(args.prefix, tokenizer, args.samples):
        print(line)


_COMMANDS: dict[str, Callable[[], _Command]] = {
    "": _preprocess_command,
    "merge": _merge_command,
    "inspect": _inspect_command,
}
