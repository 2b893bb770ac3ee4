"""Stored conversations (ids, attention mask and labels) as samples: cut to the length of a sequence and, if documents
are kept apart, with their beginnings."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.instruction.encoding import IGNORED, shares

Ids = NDArray[np.int32]
Sample = dict[str, Ids]
"""The arrays of one sample of n tokens, [n] each: input_ids, labels (not shifted), attention_mask, and document_starts
if documents are kept apart."""

PARTS = ("input_ids", "attention_mask", "labels")


@dataclass(frozen=True)
class SampleRules:
    """The rules by which conversations become samples of at most `seq_length` tokens. reset_attention_mask: documents
    are kept apart: those of `fixed_length` tokens if that is above 0, else those that the attention mask numbers
    (`neat`: data of --neat-pack), else those that the id `eos` ends. cut_max_seqlen: a conversation that is too long is
    cut at its end, as always with `reset_attention_mask`, else question and answer of each turn by their shares.
    efficient_eos: one end of text stands behind the last answer, not behind each."""

    seq_length: int
    eos: int | None = None
    """The id that ends a document where `reset_attention_mask` looks for ends; None: there is none."""
    reset_attention_mask: bool = False
    """Whether documents are kept from attending to each other: those of `fixed_length`, that the attention mask numbers
    (`neat`), or that `eos` ends."""
    neat: bool = False
    """Whether the data were packed with --neat-pack, so that the attention mask numbers their documents."""
    fixed_length: int = -1
    """The number of tokens of each document that `reset_attention_mask` keeps apart, wherever conversations end; below
    1: documents end with conversations."""
    cut_max_seqlen: bool = False
    """Whether a conversation that is too long is cut at its end, as always with `reset_attention_mask`; else question
    and answer of each turn are cut by their shares."""
    efficient_eos: bool = False
    """Whether the template has one end of text, behind the last answer, instead of one behind each."""


class Conversations:
    """Conversations, as stored in the data sets `PREFIX_packed_input_ids_document`, `..._attention_mask_...` and
    `..._labels_...`."""

    def __init__(self, prefix: str | Path, mmap: bool = True) -> None:
        """Raises ValueError for files that are missing, damaged, don't belong together, or hold answers to compare."""
        names = {part: f"{prefix}_packed_{part}_document" for part in PARTS}
        pair = f"{prefix}_packed_chosen_input_ids_document"
        if not IndexedDataset.exists(names["input_ids"]) and IndexedDataset.exists(pair):
            raise ValueError(f"--data-path {prefix}: holds answers to compare, which is not trained here; only sft is")
        self.parts = {part: IndexedDataset(name, mmap) for part, name in names.items()}
        lengths = [dataset.sequence_lengths for dataset in self.parts.values()]
        if not all(np.array_equal(lengths[0], other) for other in lengths[1:]):
            raise ValueError(f"--data-path {prefix}: its three data sets have other lengths; preprocess it again")
        self.prefix = str(prefix)

    def __len__(self) -> int:
        return len(self.parts["input_ids"])

    def __getitem__(self, number: int) -> Sample:
        return {part: np.asarray(dataset[number], np.int32) for part, dataset in self.parts.items()}

    @property
    def largest_id(self) -> int:
        """The largest of all token ids; -1 without tokens."""
        tokens = self.parts["input_ids"].tokens
        return int(tokens.max()) if len(tokens) else -1


def sampled(conversation: Sample, rules: SampleRules) -> Sample:
    """A conversation as a sample of at most `seq_length` tokens, by the rules; with `reset_attention_mask` it is cut at
    its end and has `document_starts`."""
    ids, labels = conversation["input_ids"], conversation["labels"]
    if rules.reset_attention_mask:
        kept = {part: array[: rules.seq_length] for part, array in conversation.items()}
        return {**kept, "document_starts": document_starts(kept, rules)}
    if len(ids) > rules.seq_length:
        if rules.cut_max_seqlen:
            return {part: array[: rules.seq_length] for part, array in conversation.items()}
        ids, labels = _cut_turns(ids, labels, rules.seq_length, rules.efficient_eos)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}


def document_starts(sample: Sample, rules: SampleRules) -> Ids:
    """The first position of each token's document [n]: documents of `fixed_length` if it is above 0, else with `neat`
    those that the attention mask numbers (each token of padding is one of its own), else those that `eos` ends."""
    places = np.arange(len(sample["input_ids"]), dtype=np.int32)
    if rules.fixed_length > 0:
        return places // rules.fixed_length * rules.fixed_length
    is_start = np.zeros(len(places), bool)
    is_start[:1] = True
    if rules.neat:
        mask = sample["attention_mask"]
        is_start[1:] = (mask[1:] != mask[:-1]) | (mask[1:] == 0)
    else:
        is_start[1:] = sample["input_ids"][:-1] == rules.eos
    return np.maximum.accumulate(np.where(is_start, places, 0)).astype(np.int32)


def _cut_turns(ids: Ids, labels: Ids, room: int, efficient_eos: bool) -> tuple[Ids, Ids]:
    """The ids and labels of a conversation, in which question and answer of each turn are cut by their shares, up to
    `room` tokens.

    A question is a run of labels -100, and answers' tokens are read from the labels, as in MindSpeed-LLM. With
    `efficient_eos` a question's last token counts as the answer's first, and the last token of all is kept. Without a
    question the first tokens are kept.
    """
    masked = np.concatenate([[False], labels == IGNORED, [False]])
    begins, ends = np.flatnonzero(masked[1:] & ~masked[:-1]), np.flatnonzero(~masked[1:] & masked[:-1])
    ends = ends - efficient_eos
    used = int(efficient_eos)
    answered = np.where(labels == IGNORED, ids, labels)
    kept: list[Ids] = []
    for begin, end, stop in zip(begins, ends, [*begins, len(ids)][1:], strict=True):
        if used >= room:
            break
        of_source, of_target = shares(int(end - begin), int(stop - end), room - used)
        kept += [np.arange(begin, begin + of_source), len(ids) + np.arange(end, end + of_target)]
        used += of_source + of_target
    kept = kept or [np.arange(min(len(ids), room - used))]
    if efficient_eos:
        kept.append(np.array([2 * len(ids) - 1]))
    places = np.concatenate(kept)
    cut = np.concatenate([labels, labels])[places]
    if efficient_eos:
        cut[-1] = ids[-1]
    return np.concatenate([ids, answered])[places], cut
