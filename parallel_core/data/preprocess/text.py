"""From text to data sets for pre-training, as Megatron's `tools/preprocess_data.py`."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from parallel_core.data.instruction.preprocess import data_set
from parallel_core.data.preprocess.encoding import Encoder
from parallel_core.data.preprocess.inputs import blocks, input_files
from parallel_core.data.preprocess.progress_bar import ProgressBar
from parallel_core.data.preprocess.unfinished import Progress, Unfinished, unfinished
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from parallel_core.data.workers import in_workers

_SAVED_EVERY = 30.0
"""Seconds of work that are lost at most when a run is killed."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of a run of preprocessing."""

    input: str
    """A file, a folder, or a pattern of names."""
    output_prefix: Path
    tokenizer: TokenizerOptions
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    workers: int = 1
    partitions: int = 1
    keep_sequential_samples: bool = False
    skips_bad_records: bool = False
    """Leave out records that are wrong, instead of stopping at the first."""
    restart: bool = False
    """Begin anew where a run was stopped."""

    def __post_init__(self) -> None:
        least = [
            f"--{name} {value} must be at least 1"
            for name in ("workers", "partitions")
            if (value := getattr(self, name)) < 1
        ]
        twice = [f"--json-keys {key} is given twice" for key in set(self.json_keys) if self.json_keys.count(key) > 1]
        if least or twice:
            raise ValueError("; ".join(least + twice))

    @property
    def prefixes(self) -> list[str]:
        """Of the data sets, one for each key."""
        return [data_set(self.output_prefix, key) for key in self.json_keys]

    @property
    def streams(self) -> int:
        """Parts of a data set, one after the other, that lines go to in turn."""
        return 1 if self.keep_sequential_samples else self.partitions

    def made_from(self, files: list[Path]) -> dict[str, object]:
        """All that the data sets depend on, as JSON has it."""
        tokenizer = asdict(self.tokenizer)
        named = [Path(value) for value in tokenizer.values() if isinstance(value, str) and Path(value).exists()]
        of_tokenizer = [file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        return {
            "--input": [_stamp(file) for file in files],
            "--json-keys": list(self.json_keys),
            "--append-eod": self.append_eod,
            "--partitions": self.streams,
            "tokenizer flags": {
                name: list(value) if isinstance(value, tuple) else value for name, value in tokenizer.items()
            },
            "tokenizer": [_stamp(file) for file in of_tokenizer],
        }


def _stamp(file: Path) -> list[object]:
    found = file.stat()
    return [str(file), found.st_size, found.st_mtime_ns]


def preprocess_text(options: TextOptions, log: TextIO | None = None) -> Progress:
    """Write the data sets of each key: one document a record, one sequence a text; an empty text has none.

    log: gets the progress; by default the error stream.
    Raises ValueError for input that is wrong, or has no text; then there is no new data set.
    """
    files = input_files(options.input)
    tokenizer = build_tokenizer(options.tokenizer)
    if options.append_eod:
        _ = tokenizer.eod  # raises where there is none
    encoder = Encoder(tokenizer, options.json_keys, options.append_eod, options.streams)
    made_from = options.made_from(files)
    with unfinished(options.output_prefix, options.prefixes, options.streams, made_from, options.restart) as run:
        if not run.is_complete:
            _encode(run, files, encoder, options, log or sys.stderr)
            empty = [key for key, count in zip(options.json_keys, run.progress.tokens, strict=False) if not count]
            if empty or not run.progress.tokens:
                keys = ", ".join(empty or options.json_keys)
                wrong = "".join(f"\n  {wrong}" for wrong in run.progress.wrong)
                run.forget()
                raise ValueError(f"--input {options.input} has no text under {keys}: there is nothing to write{wrong}")
            run.complete(encoder.token_type)
        run.publish()
        return run.progress


def _encode(run: Unfinished, files: list[Path], encoder: Encoder, options: TextOptions, log: TextIO) -> None:
    """Add all that is left of the input."""
    saved, start = time.monotonic(), run.progress
    bar = ProgressBar(sum(file.stat().st_size for file in files), log, start.documents, start.bytes_read)
    if run.is_resumed:
        print(f"going on behind {start.documents} documents that an earlier run has written", file=log)
    work = in_workers(encoder, blocks(files, start.position), options.workers, at_once=1)
    with closing(bar), closing(work):  # type: ignore[type-var]
        for encoded in work:
            if encoded.wrong and not options.skips_bad_records:
                more = f" (and {len(encoded.wrong) - 1} more near it)" if encoded.wrong[1:] else ""
                raise ValueError(
                    f"--input {encoded.wrong[0]}{more}; repair it, or leave such records out with --on-bad-record skip"
                )
            run.add(encoded)
            bar.show(run.progress.documents, run.progress.bytes_read)
            if time.monotonic() - saved > _SAVED_EVERY:
                run.save()
                saved = time.monotonic()
