"""Rules for a batch: a loader's mistakes are found on the host, before anything is computed.

Entries have Megatron's names: tokens, labels, position_ids, loss_mask [b, s], attention_mask [b or 1, 1, s, s]; and
document_starts [b, s]. Of other entries the rows are counted; a tensor of torch is a mistake, and so are lengths that
are neither an array nor None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_core.batch.documents import wrong_starts
from parallel_core.batch.micro_batches import (
    ATTENTION_MASK,
    DOCUMENT_STARTS,
    ENTRIES,
    LABELS,
    LENGTHS,
    LOSS_MASK,
    POSITION_IDS,
    QUERY_AXES,
    TOKENS,
    BatchEntry,
)
from parallel_core.config import AllConfig
from parallel_core.numerics.dtypes import Array

IDS = (TOKENS, LABELS, POSITION_IDS)
CHECKED = (*ENTRIES, DOCUMENT_STARTS)
IGNORED_LABEL = -100
"""The label, in torch's losses and in HuggingFace's data, that does not count."""


@dataclass(frozen=True)
class BatchRules:
    """The rules for batches of one configuration."""

    vocabulary: int
    """Rows of the embedding over all ranks: ids of tokens and labels are below it."""
    positions: int
    """--max-position-embeddings: position ids are below it."""
    length: int
    """--seq-length: s of every entry, unless `lengths_vary`."""
    lengths_vary: bool
    """--variable-seq-lengths: sequences have any length up to `positions`, the same in all entries."""
    micro_batch_size: int
    context_parallel_size: int
    fills_up: bool
    """--no-drop-remainder: a batch with too few rows is filled up."""

    @classmethod
    def of(cls, config: AllConfig) -> "BatchRules":
        """The rules that follow from a configuration."""
        model, data, parallel = config.model_config, config.dataset_config, config.parallel_config
        return cls(
            vocabulary=model.vocab_size,
            positions=model.max_position_embeddings,
            length=model.seq_length,
            lengths_vary=parallel.variable_seq_lengths,
            micro_batch_size=data.batch_size,
            context_parallel_size=parallel.context_parallel_size,
            fills_up=not data.drop_remainder,
        )

    def mistakes(self, batch: Mapping[str, Any], micro_batches: int = 1, shards: int = 1) -> list[str]:
        """The mistakes in this data-parallel rank's rows of `micro_batches` micro-batches: for each entry at fault one
        sentence, about the first rule that it breaks.

        shards: the number of context-parallel shards that the script itself has cut sequences into, for an entry that
        does not know its whole sequences.
        """
        rows = self.micro_batch_size * micro_batches
        length = self._length(batch, shards)
        found = (next(self._of_entry(name, batch, rows, length, shards), None) for name in batch)
        return [mistake for mistake in found if mistake is not None]

    def wrong_ids(self, batch: Mapping[str, Any]) -> list[str]:
        """A sentence for each entry (tokens, labels, position ids) with an id that is negative or not below
        `vocabulary` (position ids: `positions`), in a batch from which a script makes the model's inputs itself. Only a
        `BatchEntry` of integers is judged, of 8 or 16 bits as if they were unsigned. A label may be -100, and any
        number where the loss mask, of the same shape, is 0."""
        entries = {name: batch[name] for name in IDS if isinstance(batch.get(name), BatchEntry)}
        whole = {name: entry.array for name, entry in entries.items() if entry.array.dtype.kind in "iu"}
        found = (self._outside(name, ids, batch, (IGNORED_LABEL,)) for name, ids in whole.items())
        return [mistake for mistakes in found for mistake in mistakes]

    def _length(self, batch: Mapping[str, Any], shards: int) -> int:
        """The length s of this batch's whole sequences: --seq-length, or with --variable-seq-lengths that of the first
        entry that has sequences, at most `positions`."""
        if not self.lengths_vary:
            return self.length
        entries = [batch[name] for name in (*IDS, LOSS_MASK) if isinstance(batch.get(name), BatchEntry)]
        lengths = (e.sequences.shape[1] * _parts(e, shards) for e in entries if e.array.ndim > 1)
        return min(next(lengths, self.length), self.positions)

    def _of_entry(self, name: str, batch: Mapping[str, Any], rows: int, length: int, shards: int) -> Iterator[str]:
        """The mistakes of one entry, in the order of the rules; the caller takes the first, since a rule relies on
        those before it."""
        entry = batch[name]
        if not isinstance(entry, BatchEntry):
            yield from _no_array(name, entry)
            return
        array, parts = entry.sequences, _parts(entry, shards)
        is_for_all = name == ATTENTION_MASK and len(array) == 1 and rows == self.micro_batch_size
        if len(array) != rows and not is_for_all:
            micro_batches = f"{rows // self.micro_batch_size} x --micro-batch-size {self.micro_batch_size}"
            yield (
                f"{name} has {len(array)} rows, {rows} are due: {micro_batches}, this data-parallel rank's part of "
                f"--global-batch-size; give each rank its own part"
            )
        if name in CHECKED:
            yield from _wrong_type(name, array)
            yield from self._wrong_shape(name, array, length, parts)
            if name != DOCUMENT_STARTS:
                yield from self._wrong_values(name, array, batch)
            elif parts == 1:
                yield from _wrong_starts(name, array)

    def _wrong_shape(self, name: str, array: Array, length: int, parts: int) -> Iterator[str]:
        rows = (len(array),)
        wanted = (*rows, 1, length, length) if name == ATTENTION_MASK else (*rows, length // parts)
        if array.shape == wanted or (name in QUERY_AXES and parts > 1):
            return
        why = f"--seq-length is {self.length}"
        if self.lengths_vary:
            why = f"all entries are equally long, at most --max-position-embeddings {self.positions}"
        cut = f", 1/{parts} of it is this rank's: get_batch_on_this_cp_rank cuts whole sequences" if parts > 1 else ""
        yield f"{name} has shape {list(array.shape)}, must have {list(wanted)}: {why}{cut}"

    def _wrong_values(self, name: str, array: Array, batch: Mapping[str, Any]) -> Iterator[str]:
        if name in IDS:
            yield from self._outside(name, array, batch)
        elif name == LOSS_MASK and array.size and not (array.min() >= 0 and array.max() < np.inf):
            wrong = ~((array >= 0) & (array < np.inf))
            yield f"{_first(name, array, wrong)}: must be a number from 0 on, by which the token's loss is multiplied"

    def _outside(self, name: str, ids: Array, batch: Mapping[str, Any], spared: Sequence[int] = ()) -> Iterator[str]:
        """A sentence, or none, about the first of an entry's ids that is negative or not below the rows of its
        embedding (of words, or of positions); labels that are `spared`, or whose loss mask is 0, may be any."""
        size, flag = (self.positions, MAX_POSITIONS) if name == POSITION_IDS else (self.vocabulary, VOCABULARY)
        unsigned = ids.view(f"u{ids.itemsize}")  # negative ids become large ones: one comparison finds both
        if not ids.size or unsigned.max() < size:
            return
        wrong = unsigned >= size
        if name == LABELS:
            mask = batch.get(LOSS_MASK)
            if isinstance(mask, BatchEntry) and mask.sequences.shape == ids.shape:
                wrong &= mask.sequences != 0
            wrong &= ~np.isin(ids, spared)
        if wrong.any():
            yield f"{_first(name, ids, wrong)}: must be an id from 0 to {size - 1}, {flag}"


VOCABULARY = (
    "the rows of --padded-vocab-size; were the data made with another tokenizer, give that one or preprocess the text "
    "again; labels that don't count have a loss_mask of 0"
)
MAX_POSITIONS = "for --max-position-embeddings"


def _parts(entry: BatchEntry, shards: int) -> int:
    """The number of shards that an entry's sequences are cut into: `shards`, or 1 where its whole sequences are
    known."""
    return shards if entry.whole is None else 1


def _no_array(name: str, value: Any) -> Iterator[str]:
    kind = type(value)
    if value is not None and (name in (*CHECKED, LENGTHS) or kind.__module__.partition(".")[0] == "torch"):
        full = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        yield f"{name} is a {full}: must be a numpy array or a MindSpore tensor, of rows"


def _wrong_type(name: str, array: Array) -> Iterator[str]:
    if name in (*IDS, DOCUMENT_STARTS) and array.dtype not in (np.int32, np.int64):
        yield f"{name} is {array.dtype}: must be int32 or int64"
    elif name == ATTENTION_MASK and array.dtype != bool:
        yield f"{name} is {array.dtype}: must be bool, True where a score is left out"


def _wrong_starts(name: str, starts: Array) -> Iterator[str]:
    wrong = wrong_starts(starts)
    if wrong.any():
        yield f"{_first(name, starts, wrong)}: must be its document's first position: its own, or the one before's"


def _first(name: str, array: Array, wrong: Array) -> str:
    """The place and the value of the first element of `array` that is `wrong`, as text."""
    place = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{name}[{', '.join(map(str, place))}] is {array[place]}"
