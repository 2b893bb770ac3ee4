"""Whether the files that arguments name are there, and indices whole. Training looks before it starts; `explain` only
when asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parallel_core.data.indexed_dataset import Index, idx_path
from parallel_core.findings import Finding

DATA_FLAGS = ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path")


def missing_files(args: Any) -> Iterator[Finding]:
    """One finding for each file or directory that is named and not there."""
    for flag, path in (
        ("--vocab-file", args.vocab_file),
        ("--merge-file", args.merge_file),
        ("--tokenizer-model", args.tokenizer_model),
        ("--tokenizer-name-or-path", args.tokenizer_name_or_path),
    ):
        if path is not None and not Path(path).exists():
            yield Finding(flag, path, "there is no such file", "give the path of an existing one")
    for flag in DATA_FLAGS:
        yield from _missing_data(flag, getattr(args, flag.removeprefix("--").replace("-", "_")) or ())


def _missing_data(flag: str, entries: Sequence[str]) -> Iterator[Finding]:
    for prefix in data_prefixes(entries):
        missing = [suffix for suffix in (".bin", ".idx") if not Path(prefix + suffix).is_file()]
        for suffix in missing:
            rule = f"there is no file {prefix}{suffix}"
            yield Finding(flag, prefix, rule, "give a prefix that has both .bin and .idx")
        try:
            if not missing:
                Index.read(idx_path(prefix))
        except ValueError as error:
            rule, _, fix = str(error).partition("; ")
            yield Finding(flag, prefix, rule, fix)


def data_prefixes(entries: Sequence[str]) -> list[str]:
    """The prefixes of a blend: all entries, or every second if they alternate with weights."""
    try:
        [float(weight) for weight in entries[::2]]
    except ValueError:
        return list(entries)
    return list(entries[1::2])
