"""Show a data set: how much is in it, and some of its sequences."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from parallel_core.data.indexed_dataset import IndexedDataset, bin_path, smallest_token_type
from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.data.instruction.preprocess import data_set
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.numerics.dtypes import Array

_SHOWN = 400
"""The number of characters of a sample that are shown."""
_QUANTILES = {"shortest": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "longest": 1.0}


def instruction_prefix(prefix: str) -> str | None:
    """The common start of the paths of an instruction data set's parts: `prefix` (without "_input_ids_document" at its
    end), or else `prefix`_packed, whichever has a part labels; None if neither has."""
    beginnings = (prefix.removesuffix("_input_ids_document"), f"{prefix}_packed")
    return next((each for each in beginnings if IndexedDataset.exists(data_set(Path(each), "labels"))), None)


def report(prefix: str, tokenizer: MegatronTokenizer | None = None, samples: int = 1) -> Iterator[str]:
    """The lines that describe a data set, with at most `samples` of its sequences, as ids, or as text with a tokenizer:
    a long sequence is cut, of an instruction data set each long stretch with or without loss.

    Raises ValueError for a data set that is missing or damaged, or whose input_ids and labels differ in their lengths.
    """
    instruction = instruction_prefix(prefix)
    if instruction is None:
        tokens = IndexedDataset(prefix)
        yield from _sizes(tokens, tokenizer)
        for number in _chosen(tokens, samples):
            yield f"sequence {number} ({tokens.sequence_lengths[number]} tokens):"
            yield f"  {_shown(tokens[number], tokenizer)}"
        return
    tokens, labels = (IndexedDataset(data_set(Path(instruction), key)) for key in ("input_ids", "labels"))
    if not np.array_equal(tokens.sequence_lengths, labels.sequence_lengths):
        raise ValueError(f"{instruction}: input_ids and labels differ in their lengths; preprocess the data again")
    yield from _sizes(tokens, tokenizer)
    lengths = labels.sequence_lengths
    counts = labels.tokens != IGNORED
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]
    learnt = int(counts.sum() - counts[firsts].sum())
    yield f"tokens that count in the loss: {learnt} ({learnt / max(1, len(labels.tokens)):.1%})"
    for number in _chosen(tokens, samples):
        yield f"sample {number} ({tokens.sequence_lengths[number]} tokens; + counts in the loss, - does not):"
        yield from _turns(tokens[number], labels[number], tokenizer)


def _sizes(tokens: IndexedDataset, tokenizer: MegatronTokenizer | None) -> Iterator[str]:
    lengths, sequences = tokens.sequence_lengths, np.diff(tokens.document_indices)
    yield f"{tokens.path_prefix}: {bin_path(tokens.path_prefix).stat().st_size / 1e6:.1f} MB of tokens"
    yield f"documents: {len(sequences)}" + (
        f", {empty} of them empty" if (empty := int((sequences == 0).sum())) else ""
    )
    yield f"sequences: {len(lengths)}" + (", with modes (multimodal)" if tokens.sequence_modes is not None else "")
    yield f"tokens: {len(tokens.tokens)} of type {tokens.dtype}"
    if len(lengths):
        values = np.quantile(lengths, list(_QUANTILES.values())).round().astype(int)
        parts = [f"{name} {value}" for name, value in zip(_QUANTILES, values, strict=True)]
        yield f"tokens in a sequence: {', '.join(parts)}, mean {lengths.mean():.1f}"
    if len(tokens.tokens):
        yield f"largest id: {tokens.tokens.max()}"
        if tokenizer is not None:
            yield from _doubts(tokens, tokenizer)


def _doubts(tokens: IndexedDataset, tokenizer: MegatronTokenizer) -> Iterator[str]:
    """Lines about signs that the data were made with another tokenizer."""
    outside = int(((tokens.tokens < 0) | (tokens.tokens >= tokenizer.vocab_size)).sum())
    if outside:
        yield f"made with another tokenizer: {outside} ids are none of its {tokenizer.vocab_size}"
    if tokens.dtype not in (smallest_token_type(tokenizer.vocab_size), np.dtype(np.int32)):
        yield f"made with another tokenizer: one of {tokenizer.vocab_size} ids is stored in another type"
    if tokenizer.facts.eod is not None:
        ends = tokens.document_indices[1:][np.diff(tokens.document_indices) > 0] - 1
        last = np.cumsum(tokens.sequence_lengths, dtype=np.int64)[ends] - 1
        ended = int((tokens.tokens[last] == tokenizer.eod).sum())
        yield f"documents that end with the end-of-document id {tokenizer.eod}: {ended} of {len(ends)} that have tokens"


def _chosen(tokens: IndexedDataset, samples: int) -> Sequence[int]:
    """The numbers of `samples` sequences, evenly spaced from the first on."""
    return [number * len(tokens) // samples for number in range(min(samples, len(tokens)))] if samples > 0 else []


def _shown(ids: Array, tokenizer: MegatronTokenizer | None) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids[:64].tolist())) + (" ..." if len(ids) > 64 else "")
    try:
        text = _text(ids.tolist(), tokenizer)
    except ValueError as error:
        return f"cannot be decoded: {error}"
    return repr(text[:_SHOWN]) + (" ..." if len(text) > _SHOWN else "")


def _text(ids: list[int], tokenizer: MegatronTokenizer) -> str:
    """The text of ids, with the names of special tokens that the tokenizer leaves out of text."""
    facts = tokenizer.facts
    roles = (facts.eod, facts.pad, facts.bos, facts.eos, facts.cls, facts.sep, facts.mask)
    special = {i for i in (*roles, *facts.additional_special_tokens_ids) if i is not None and i in ids}
    hidden = {i: tokenizer.inv_vocab[i] for i in special if not tokenizer.detokenize([i])}
    runs = ((is_hidden, list(run)) for is_hidden, run in groupby(ids, hidden.__contains__))
    return "".join(
        "".join(hidden[i] for i in run) if is_hidden else tokenizer.detokenize(run) for is_hidden, run in runs
    )


def _turns(ids: Array, labels: Array, tokenizer: MegatronTokenizer | None) -> Iterator[str]:
    """Lines of the stretches of tokens with loss (+) and without (-). The first token of a sample, which nothing
    predicts, is without."""
    counts = labels != IGNORED
    counts[:1] = False
    borders = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(ids)]
    for begin, end in pairwise(borders if len(ids) else ()):
        yield f"  {'+' if counts[begin] else '-'} {_shown(ids[begin:end], tokenizer)}"
