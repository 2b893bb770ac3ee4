"""The way from text to data sets for pre-training, as Megatron's `tools/preprocess_data.py`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from parallel_core.data.instruction.preprocess import data_set
from parallel_core.data.preprocess.encoding import Encoded, Encoder
from parallel_core.data.preprocess.inputs import BEGINNING, Position, blocks, input_files
from parallel_core.data.preprocess.progress_bar import ProgressBar
from parallel_core.data.preprocess.unfinished import Unfinished, stamps, tokenizer_stamps, unfinished
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from parallel_core.data.workers import in_workers

_NAMED = 20
"""The number of wrong records whose place and reason are kept."""


@dataclass(frozen=True)
class Progress:
    """The position up to which a run has encoded and written its input, and the counts so far: of documents, of tokens
    for each key, of records left out, and of bytes read. wrong: place and reason of the first 20 records left out."""

    position: Position = BEGINNING
    documents: int = 0
    tokens: tuple[int, ...] = ()
    """The number of tokens for each key."""
    left_out: int = 0
    wrong: tuple[str, ...] = ()
    """Place and reason of each record that was left out, of the first 20."""
    bytes_read: int = 0

    def after(self, encoded: Encoded) -> "Progress":
        """The progress after one block more."""
        return Progress(
            encoded.end,
            self.documents + encoded.documents,
            tuple(old + new for old, new in zip(self.tokens or [0] * len(encoded.tokens), encoded.tokens, strict=True)),
            self.left_out + len(encoded.wrong),
            (*self.wrong, *encoded.wrong)[:_NAMED],
            encoded.bytes_read,
        )

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Progress":
        """The progress of which `content` is the `asdict`; {}: that of a run that begins."""
        lists = {name: tuple(content.get(name, ())) for name in ("tokens", "wrong")}
        return cls(**{**content, **lists, "position": Position(**content.get("position", {}))})


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options of a run of preprocessing of text, most of them named as its flags. skips_bad_records: leave wrong
    records out instead of stopping at the first. Raises ValueError for `workers` or `partitions` below 1, and for a key
    that is given twice."""

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
    """Whether records that are wrong are left out, instead of stopping at the first."""
    restart: bool = False
    """Whether to begin anew where an earlier run was stopped, instead of going on."""

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
        """The prefixes of the data sets, one for each of --json-keys."""
        return [data_set(self.output_prefix, key) for key in self.json_keys]

    @property
    def streams(self) -> int:
        """The number of streams of a data set, `partitions`: input lines are dealt to them in turn, and they lie one
        after the other in it. 1 with `keep_sequential_samples`: the data set keeps the lines' order."""
        return 1 if self.keep_sequential_samples else self.partitions

    def made_from(self, files: list[Path]) -> dict[str, object]:
        """The stamps of the input's and the tokenizer's files, the keys, --append-eod, the number of streams and the
        tokenizer's flags, as JSON data: a run that was stopped goes on only with the same."""
        return {
            "--input": stamps(files),
            "--json-keys": list(self.json_keys),
            "--append-eod": self.append_eod,
            "--partitions": self.streams,
            **tokenizer_stamps(self.tokenizer),
        }


def preprocess_text(options: TextOptions, log: TextIO | None = None) -> Progress:
    """Write the data set of each key: one document a record, one sequence a text; a text without tokens has none.
    Returns the final counts.

    log: gets the progress; None: the error stream. Raises ValueError for input that is missing, for a record that is
    wrong (unless `skips_bad_records`), for a key under which there is no token, with append_eod for a tokenizer without
    an end of a document, for ids that the tokens' type (`Encoder.token_type`) does not hold, for a worker process that
    was killed, and as `unfinished`; the errors of `blocks` and `build_tokenizer`. Then there is no new data set.
    """
    files = input_files(options.input)
    tokenizer = build_tokenizer(options.tokenizer)
    if options.append_eod:
        _ = tokenizer.eod  # raises an error if the tokenizer has no end of a document
    encoder = Encoder(tokenizer, options.json_keys, options.append_eod, options.streams)
    made_from = options.made_from(files)
    with unfinished(options.output_prefix, options.prefixes, options.streams, made_from, options.restart) as run:
        _check(Progress.of(run.progress).wrong, options)  # those of an earlier run that skipped them
        if not run.is_complete:
            done = _encode(run, files, encoder, options, log or sys.stderr)
            empty = [key for key, count in zip(options.json_keys, done.tokens, strict=False) if not count]
            if empty or not done.tokens:
                keys = ", ".join(empty or options.json_keys)
                wrong = "".join(f"\n  {wrong}" for wrong in done.wrong)
                run.forget()
                raise ValueError(f"--input {options.input} has no text under {keys}: there is nothing to write{wrong}")
            run.complete(encoder.token_type)
        run.publish()
        return Progress.of(run.progress)


def _encode(run: Unfinished, files: list[Path], encoder: Encoder, options: TextOptions, log: TextIO) -> Progress:
    """Encode all that is left of the input, add it to the run's files, and return the state after it."""
    done = start = Progress.of(run.progress)
    bar = ProgressBar(sum(file.stat().st_size for file in files), log, start.documents, start.bytes_read)
    if run.is_resumed:
        print(f"going on behind {start.documents} documents that an earlier run has written", file=log)
    work = in_workers(encoder, blocks(files, start.position), options.workers, at_once=1)
    with closing(bar), closing(work):  # type: ignore[type-var]
        for encoded in work:
            _check(encoded.wrong, options)
            done = done.after(encoded)
            run.add(encoded.parts, asdict(done))
            bar.show(done.documents, done.bytes_read)
    return done


def _check(wrong: Sequence[str], options: TextOptions) -> None:
    """Raise ValueError if there are wrong records, and they are not to be left out."""
    if wrong and not options.skips_bad_records:
        more = f" (and {len(wrong) - 1} more near it)" if wrong[1:] else ""
        raise ValueError(f"--input {wrong[0]}{more}; repair it, or leave such records out with --on-bad-record skip")
