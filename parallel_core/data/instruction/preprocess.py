"""From records to the data sets of fine-tuning: the whole way, in worker processes if asked, and all files or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.instruction.columns import mapped
from parallel_core.data.instruction.conversations import CONVERTERS, Conversation
from parallel_core.data.instruction.encoding import UNCUT, ConversationEncoder
from parallel_core.data.instruction.handlers import HANDLERS
from parallel_core.data.instruction.mixing import Source, checked_probabilities, interleaved, listed_sources
from parallel_core.data.instruction.options import InstructionOptions
from parallel_core.data.instruction.packing import Sample, packed
from parallel_core.data.instruction.records import BadRecord, Report, UnreadableRecord, read_records
from parallel_core.data.instruction.setting import Sequences, Setting
from parallel_core.data.instruction.templates import OWN_TEMPLATE, load_template
from parallel_core.data.instruction.tokens import tokens_for
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.data.workers import in_workers

Document = dict[str, list[list[int]] | None]
"""Data set -> its sequences of one record; none: the data set has no such document."""


class _Item(NamedTuple):
    """A conversation or row that is to be encoded."""

    place: str
    content: Any


def data_set(prefix: Path, key: str) -> str:
    """The path of a data set without its ending."""
    return f"{prefix}_{key}_document"


def preprocess_instructions(options: InstructionOptions, tokenizer: MegatronTokenizer) -> Report:
    """Write the data sets that a handler makes of `--input`: int32, one document a record.

    Raises ValueError for input that cannot be read, or holds nothing to train on; then nothing is written.
    """
    setting = _setting(options, tokenizer)
    report = Report(options.on_bad_record)
    documents = _encoded(_items(options, report), setting, options, report)
    if options.pack:
        documents = _in_packs(documents, setting, options, report)
    with ExitStack() as stack:
        builders = {
            key: stack.enter_context(IndexedDatasetBuilder(data_set(options.prefix, key), np.int32))
            for key in options.keys
        }
        number = 0
        for number, (_, document) in enumerate(documents, start=1):  # noqa: B007
            for key, builder in builders.items():
                parts = document[key]
                if parts is not None:
                    builder.add_document([token for part in parts for token in part], [len(part) for part in parts])
        if not number:
            raise ValueError("\n".join(["--input has no record that can be trained on", *report.lines()]))
        for builder in builders.values():
            builder.finalize()
    return report


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


def _items(options: InstructionOptions, report: Report) -> Iterator[_Item]:
    sources = _sources(options)
    probabilities = checked_probabilities(options.interleave_probs, len(sources))
    aligned = [_aligned(source, options, report) for source in sources]
    if options.mix_strategy == "concat" or len(sources) == 1:
        for items in aligned:
            yield from items
        return
    lists = [list(items) for items in aligned]
    empty = [str(source.path) for source, items in zip(sources, lists, strict=True) if not items]
    if empty:
        raise ValueError(f"--mix-strategy {options.mix_strategy}: {empty[0]} has no record that can be trained on")
    until_all = options.mix_strategy == "interleave_over"
    for which, number in interleaved([len(items) for items in lists], probabilities, options.seed, until_all):
        yield lists[which][number]


def _aligned(source: Source, options: InstructionOptions, report: Report) -> Iterator[_Item]:
    """The records of a source as conversations. Raises ValueError if no record has a column that --map-keys names."""
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
            yield _Item(record.place, content)
    if missing:
        raise ValueError(f"--map-keys: no record has {', '.join(sorted(missing))}; name columns that {source.path} has")


class _Encoder:
    """`encode` of a handler, for worker processes: gives what is wrong instead of raising it."""

    def __init__(self, handler_name: str, setting: Setting) -> None:
        self.handler_name, self.setting = handler_name, setting

    def __call__(self, item: _Item) -> tuple[str, Sequences | BadRecord]:
        try:
            return item.place, HANDLERS[self.handler_name].encode(item.content, self.setting)
        except BadRecord as error:
            return item.place, error


def _encoded(
    items: Iterable[_Item], setting: Setting, options: InstructionOptions, report: Report
) -> Iterator[tuple[str, Document]]:
    """Place and sequences of each record, without those that are too long."""
    most = None if options.pack else options.seq_length
    for place, sequences in in_workers(_Encoder(options.handler_name, setting), items, options.workers):
        if isinstance(sequences, BadRecord):
            report.left_out_for(place, sequences)
        elif not any(sequences.values()):
            report.left_out_for(place, BadRecord("no text"))
        else:
            too_long = _too_long(sequences, most)
            for length in too_long.values():
                report.left_out_for(place, _longer(length, most))
            report.written += max(map(len, sequences.values())) - len(too_long)
            yield (
                place,
                {
                    key: [part for number, part in enumerate(parts) if number not in too_long] if parts else None
                    for key, parts in sequences.items()
                },
            )


def _too_long(sequences: Sequences, most: int | None) -> dict[int, int]:
    """Number and length of sequences that do not fit; as in MindSpeed-LLM their document stays, without them."""
    if most is None:
        return {}
    lengths = [(number, len(part)) for parts in sequences.values() for number, part in enumerate(parts)]
    return {number: length for number, length in sorted(lengths) if length >= most}


def _longer(length: int, most: int | None) -> BadRecord:
    return BadRecord(f"too long: {length} tokens, --seq-length {most} takes fewer")


def _in_packs(
    documents: Iterable[tuple[str, Document]], setting: Setting, options: InstructionOptions, report: Report
) -> Iterator[tuple[str, Document]]:
    """Several conversations in a document. Of those that are too long the end goes with --neat-pack, else the whole."""
    most = options.seq_length
    assert most is not None
    samples: list[Sample] = []
    for place, document in documents:
        sample = {key: parts[0] for key, parts in document.items() if parts}
        length = len(sample["input_ids"])
        if length >= most and not options.neat_pack:
            report.written -= 1
            report.left_out_for(place, _longer(length, most))
            continue
        samples.append({key: part[: most - 1] for key, part in sample.items()})
    for sample in packed(samples, most, setting.tokens.pad, options.neat_pack):
        yield "", {key: [part] for key, part in sample.items()}
