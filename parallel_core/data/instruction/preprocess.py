"""The way from records to the data sets of a handler: reading, encoding (in worker processes if asked) and packing."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.instruction.columns import mapped
from parallel_core.data.instruction.conversations import CONVERTERS, Conversation
from parallel_core.data.instruction.encoding import UNCUT, ConversationEncoder
from parallel_core.data.instruction.handlers import HANDLERS
from parallel_core.data.instruction.mixing import Source, checked_probabilities, interleaved, listed_sources
from parallel_core.data.instruction.options import InstructionOptions
from parallel_core.data.instruction.packing import Sample, packed
from parallel_core.data.instruction.records import BadRecord, Report, UnreadableRecord, read_records, record_files
from parallel_core.data.instruction.setting import Sequences, Setting
from parallel_core.data.instruction.templates import OWN_TEMPLATE, load_template
from parallel_core.data.instruction.tokens import tokens_for
from parallel_core.data.preprocess.encoding import Part, part_of
from parallel_core.data.preprocess.progress_bar import ProgressBar
from parallel_core.data.preprocess.unfinished import Unfinished, stamps, tokenizer_stamps, unfinished
from parallel_core.data.tokenizers import MegatronTokenizer, TokenizerOptions, build_tokenizer
from parallel_core.data.workers import in_workers

_BLOCK = 256
"""The number of records from one point from which a stopped run can go on to the next."""

Document = dict[str, list[list[int]] | None]
"""Name of a data set -> its sequences of one record; None: the data set has no document for the record."""


class _Item(NamedTuple):
    """A conversation or row that is to be encoded, with its place for messages."""

    place: str
    content: Any
    bytes_read: int
    """Bytes of all input up to and with this item."""


def data_set(prefix: Path, key: str) -> str:
    """The path of a data set, without .bin and .idx, by the output prefix and the data set's name `key`."""
    return f"{prefix}_{key}_document"


@dataclass(frozen=True)
class Progress:
    """The progress of a run of preprocessing: the number of conversations and rows so far (`items`), of documents
    before packing, and the report on the items."""

    items: int = 0
    """The number of conversations and rows so far, with those that were then left out."""
    documents: int = 0
    """The number of documents so far, before packing."""
    report: Report = field(default_factory=Report)
    """The report on the items; records that became none are not in it."""

    @classmethod
    def of(cls, content: dict[str, Any], report: Report) -> "Progress":
        """The progress that `content` describes, in the form of the property `content` of a Progress; {}: that at the
        start of a run. report: gives the entries that the report in `content` lacks."""
        counts = {name: content.get(name, 0) for name in ("items", "documents")}
        return cls(**counts, report=replace(report, **content.get("report", {})))

    @property
    def content(self) -> dict[str, Any]:
        """The progress as JSON data: items, documents, and the report as an object."""
        return {"items": self.items, "documents": self.documents, "report": vars(self.report)}


def preprocess_instructions(options: InstructionOptions, flags: TokenizerOptions, log: TextIO | None = None) -> Report:
    """Write the data sets that a handler makes of `--input`: int32, at most one document a record (again where
    --mix-strategy repeats the record), with --pack one a pack. Returns the report on the records.

    log: gets the progress; None: the error stream.
    Raises ValueError for input that is missing or damaged, or holds nothing to train on, for a record at which
    --on-bad-record stops, for options, template or tokenizer that do not fit the input or each other, for a worker
    process that was killed, and as `unfinished` and `build_tokenizer`; then there is no new data set. ValueError or
    OSError for a file that cannot be opened, OSError for one that cannot be written.
    """
    setting, sources = _setting(options, build_tokenizer(flags)), _sources(options)
    files = [file for source in sources for file in record_files(source.path)]
    reading = Report(options.on_bad_record)
    items = _items(sources, options, reading)
    prefixes = [data_set(options.prefix, key) for key in options.keys]
    made_from = _made_from(options, files) | tokenizer_stamps(flags)
    with unfinished(options.prefix, prefixes, 1, made_from, options.restart) as run:
        done = Progress.of(run.progress, Report(options.on_bad_record))
        if not run.is_complete:
            bar = ProgressBar(sum(file.stat().st_size for file in files), log or sys.stderr, done.documents)
            with closing(bar):
                done = _encode(run, done, items, setting, options, bar)
            report = reading.with_more(done.report)
            if not done.documents:
                run.forget()
                raise ValueError("\n".join(["--input has no record that can be trained on", *report.lines()]))
            if options.pack:
                _write_packs(run, setting, options)
                run.forget()
                return report
            run.complete(np.int32)
        run.publish()
        return reading.with_more(done.report)


def _made_from(options: InstructionOptions, files: list[Path]) -> dict[str, object]:
    given = {name: str(value) for name, value in asdict(options).items() if name not in ("workers", "restart")}
    return {"flags": given, "--input": stamps(files), "--prompt-type-path": stamps([options.prompt_type_path])}


def _setting(options: InstructionOptions, tokenizer: MegatronTokenizer) -> Setting:
    is_own = options.prompt_type in (None, OWN_TEMPLATE)
    template = None if is_own else load_template(str(options.prompt_type).strip(), options.prompt_type_path)
    tokens = tokens_for(template, tokenizer)
    room = UNCUT if options.seq_length is None else options.seq_length
    return Setting(
        tokens=tokens,
        encoder=ConversationEncoder(template, tokens, room, options.enable_thinking, options.drop_thinking),
        json_keys=options.json_keys,
        append_eod=options.append_eod,
        pad_to_multiple_of=options.pad_to_multiple_of,
        neat_room=room - 1 if options.neat_pack else None,
        additional_keys=options.dataset_additional_keys,
        room=options.seq_length,
    )


def _sources(options: InstructionOptions) -> list[Source]:
    handler = options.handler
    if options.handler_name == "LlamaFactoryInstructionHandler":
        return listed_sources(options.input, options.dataset_dir)
    columns = mapped(handler.columns, handler.map_keys, options.map_keys)
    return [Source(Path(options.input), handler.converter, columns)]


def _items(sources: list[Source], options: InstructionOptions, report: Report) -> Iterator[_Item]:
    until_all = options.mix_strategy == "interleave_over"
    probabilities = checked_probabilities(options.interleave_probs, len(sources), until_all)
    aligned = [_aligned(source, options, report) for source in sources]
    if options.mix_strategy == "concat" or len(sources) == 1:
        before = 0
        for source, items in zip(sources, aligned, strict=True):
            for item in items:
                yield item._replace(bytes_read=before + item.bytes_read)
            before += _size(source)
        return
    lists = [list(items) for items in aligned]
    empty = [str(source.path) for source, items in zip(sources, lists, strict=True) if not items]
    if empty:
        raise ValueError(f"--mix-strategy {options.mix_strategy}: {empty[0]} has no record that can be trained on")
    order = list(interleaved([len(items) for items in lists], probabilities, options.seed, until_all))
    size = sum(map(_size, sources))
    for place, (which, number) in enumerate(order, start=1):
        yield lists[which][number]._replace(bytes_read=size * place // len(order))


def _size(source: Source) -> int:
    return sum(file.stat().st_size for file in record_files(source.path))


def _aligned(source: Source, options: InstructionOptions, report: Report) -> Iterator[_Item]:
    """The records of a source as conversations, or as rows for a handler without a converter. Raises ValueError if no
    record has a column that --map-keys names."""
    missing = set(source.columns.named)
    convert = CONVERTERS[source.converter] if source.converter else None
    for record in islice(read_records(source.path), options.max_samples):
        report.read += 1
        try:
            if isinstance(record.row, UnreadableRecord):
                raise record.row
            missing -= record.row.keys()
            content = convert(record.row, source.columns) if convert else record.row
        except BadRecord as error:
            report.left_out_for(record.place, error)
            continue
        doubt = content.doubt if isinstance(content, Conversation) else ""
        if not doubt or report.is_written(record.place, doubt):
            yield _Item(record.place, content, record.bytes_read)
    if missing:
        raise ValueError(f"--map-keys: no record has {', '.join(sorted(missing))}; name columns that {source.path} has")


class _Encoder:
    """A handler's `encode` for worker processes: it returns a BadRecord instead of raising it."""

    def __init__(self, handler_name: str, setting: Setting) -> None:
        self.handler_name, self.setting = handler_name, setting

    def __call__(self, item: _Item) -> tuple[_Item, Sequences | BadRecord]:
        rest = item._replace(content=None)
        try:
            return rest, HANDLERS[self.handler_name].encode(item.content, self.setting)
        except BadRecord as error:
            return rest, error


def _encode(
    run: Unfinished,
    done: Progress,
    items: Iterator[_Item],
    setting: Setting,
    options: InstructionOptions,
    bar: ProgressBar,
) -> Progress:
    """Add the documents of all items that no earlier run has encoded, and return the state after them."""
    if run.is_resumed:
        print(f"going on behind {done.documents} documents that an earlier run has written", file=bar.stream)
    encoder = _Encoder(options.handler_name, setting)
    work = in_workers(encoder, islice(items, done.items, None), options.workers)
    with closing(work):  # type: ignore[type-var]
        while block := list(islice(work, _BLOCK)):
            report = Report(options.on_bad_record)
            made = [_document(item.place, sequences, options, report) for item, sequences in block]
            documents = [document for document in made if document is not None]
            done = Progress(done.items + len(block), done.documents + len(documents), done.report.with_more(report))
            run.add([_stream(documents, key) for key in options.keys], done.content)
            bar.show(done.documents, block[-1][0].bytes_read)
    return done


def _stream(documents: list[Document], key: str) -> Part:
    return part_of([parts for document in documents if (parts := document[key]) is not None], np.int32)


def _document(
    place: str, sequences: Sequences | BadRecord, options: InstructionOptions, report: Report
) -> Document | None:
    """The document that is written for a record; None: the record is left out, which the report counts."""
    if not isinstance(sequences, BadRecord) and not any(sequences.values()):
        sequences = BadRecord("no text")
    if isinstance(sequences, BadRecord):
        report.left_out_for(place, sequences)
        return None
    if options.neat_pack:
        room = _room(options)
        sequences = {key: [part[:room] for part in parts] for key, parts in sequences.items()}
    too_long = _too_long(sequences, options.seq_length)
    for length in too_long.values():
        report.left_out_for(
            place, BadRecord(f"too long: {length} tokens, --seq-length {options.seq_length} takes fewer")
        )
    written = max(map(len, sequences.values())) - len(too_long)
    report.written += written
    if options.pack and not written:
        return None
    return {
        key: [part for number, part in enumerate(parts) if number not in too_long] if parts else None
        for key, parts in sequences.items()
    }


def _room(options: InstructionOptions) -> int:
    """The number of tokens that fit into a pack."""
    assert options.seq_length is not None, "--pack needs --seq-length"
    return options.seq_length - 1


def _too_long(sequences: Sequences, most: int | None) -> dict[int, int]:
    """Place in its list -> length, of each sequence of `most` tokens or more (None: no limit); as in MindSpeed-LLM
    these are left out of their document, which without --pack stays."""
    if most is None:
        return {}
    lengths = [(number, len(part)) for parts in sequences.values() for number, part in enumerate(parts)]
    return {number: length for number, length in sorted(lengths) if length >= most}


def _write_packs(run: Unfinished, setting: Setting, options: InstructionOptions) -> None:
    """Pack the samples that the run has encoded, and write them as its data sets."""
    by_key = {key: run.documents(which) for which, key in enumerate(options.keys)}
    samples: list[Sample] = [
        dict(zip(by_key, parts, strict=True))
        for document in zip(*by_key.values(), strict=True)
        for parts in zip(*document, strict=True)
    ]
    packs = packed(samples, _room(options) + 1, setting.tokens.pad, options.neat_pack)
    with ExitStack() as stack:
        builders = {
            key: stack.enter_context(IndexedDatasetBuilder(data_set(options.prefix, key), np.int32))
            for key in options.keys
        }
        for pack in packs:
            for key, builder in builders.items():
                builder.add_document(pack[key], [len(pack[key])])
        for builder in builders.values():
            builder.finalize()
