"""Findings about files that flags name and that are not there, or, of .idx files, are damaged."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mapping.flags.with_option.dataset import INDEXED
from parallel_core.data.indexed_dataset import Index, idx_path
from parallel_core.data.instruction.samples import PARTS
from parallel_core.findings import Finding

DATA_FLAGS = ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path")


def missing_files(args: Any) -> Iterator[Finding]:
    """A finding for each file or folder that is not there and that --vocab-file, --merge-file, --tokenizer-model,
    --tokenizer-name-or-path, --fsdp2-config-path or one of DATA_FLAGS names, and for each .idx file of data that has a
    .bin file beside it and is damaged. Other flags, such as --load, are not looked at."""
    for flag, path in (
        ("--vocab-file", args.vocab_file),
        ("--merge-file", args.merge_file),
        ("--tokenizer-model", args.tokenizer_model),
        ("--tokenizer-name-or-path", args.tokenizer_name_or_path),
        ("--fsdp2-config-path", args.fsdp2_config_path),
    ):
        if path is not None and not Path(path).exists():
            yield Finding(flag, path, "there is no such file", "give the path of an existing one")
    for flag in DATA_FLAGS:
        for prefix in data_prefixes(getattr(args, flag.removeprefix("--").replace("-", "_")) or ()):
            yield from _missing_data(flag, prefix, args)


def _missing_data(flag: str, prefix: str, args: Any) -> Iterator[Finding]:
    reads = "--sft reads messages" if args.sft else "--dataset reads questions with answers"
    if args.sft or args.dataset not in (None, *INDEXED):
        if not Path(prefix).exists():
            yield Finding(flag, prefix, "there is no such file", f"{reads}: give a .jsonl file")
        return
    parts, fix = [prefix], "give a prefix that has both .bin and .idx"
    if args.stage == "sft" or args.is_instruction_dataset:
        parts = [f"{prefix}_packed_{part}_document" for part in PARTS]
        fix = "give what preprocess with --handler-name had as --output-prefix"
    if prefix.endswith((".bin", ".idx")):
        fix = "leave .bin and .idx out of the prefix"
    elif "," in prefix:
        fix = "separate weights and prefixes by spaces"
    for part in parts:
        missing = [suffix for suffix in (".bin", ".idx") if not Path(part + suffix).is_file()]
        for suffix in missing:
            yield Finding(flag, prefix, f"there is no file {part}{suffix}", fix)
        try:
            if not missing:
                Index.read(idx_path(part))
        except ValueError as error:
            rule, _, fix = str(error).partition("; ")
            yield Finding(flag, prefix, rule, fix)


def data_prefixes(entries: Sequence[str]) -> list[str]:
    """The prefixes of a blend: every second entry, from the second on, if all others are numbers, the weights; else all
    entries."""
    try:
        [float(weight) for weight in entries[::2]]
    except ValueError:
        return list(entries)
    return list(entries[1::2])
