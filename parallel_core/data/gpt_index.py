"""The tokens of each sample: Megatron's document, sample and shuffle indices.

The documents of all epochs, shuffled together, are laid end to end and cut into samples of s tokens; the samples are
shuffled once more. A last epoch of which few samples are needed is shuffled apart from the others, both times. One
random state does all, so equal requests give equal indices.
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.data.index_cache import cached, fingerprint

_SHARE_OF_LAST_EPOCH = 0.80
"""A last epoch that gives fewer than this share of its samples is shuffled apart from the others."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IndexRequest:
    """Everything that the document, sample and shuffle indices of a split depend on: the lengths in tokens of a file's
    sequences [n], the numbers of the split's sequences (`documents` [d]), the number of samples that are needed (None:
    those of one epoch), the tokens in a sample, and the seed. extra_token: a sample reads one more token, which is also
    the first of the next; drop_last_partial: the tokens left over at the end give no sample."""

    lengths: NDArray[np.int32]
    """The number of tokens of each sequence of the file [n]."""
    documents: NDArray[np.int32]
    """The numbers of the sequences of this split [d]."""
    num_samples: int | None
    """The number of samples that are needed; None: as many as one epoch gives."""
    sequence_length: int
    """The number of tokens in a sample, s."""
    seed: int
    """Seed of the random state."""
    extra_token: bool = True
    """Whether a sample reads one more token, which is also the first of the next sample."""
    drop_last_partial: bool = True
    """Whether the tokens left over at the end give no sample."""


@dataclass(frozen=True, eq=False)
class GPTIndex:
    """The document, sample and shuffle indices of a split. `document_index` [epochs * d] has the numbers of the file's
    sequences in the order in which they are read, a row of `sample_index` [samples + 1, 2] a place in it: a position in
    `document_index`, and a token, from 0, in that sequence. Sample i is number k, from 0, in this order, k =
    `shuffle_index[i]`, and goes from the place `sample_index[k]` to `sample_index[k + 1]`, whose token is in it with
    an extra token only."""

    document_index: NDArray[np.int32]
    """The numbers of the file's sequences in the order in which they are read [epochs * d]."""
    sample_index: NDArray[np.integer[Any]]
    """The beginning of each sample [samples + 1, 2]: position in `document_index`, and token in that sequence."""
    shuffle_index: NDArray[np.integer[Any]]
    """The order in which samples are given out [samples]."""


def build_gpt_index(request: IndexRequest) -> GPTIndex:
    """The indices for `request`, equal to Megatron's: all samples of as many epochs as `num_samples` need (None or 0:
    one epoch). Raises AssertionError where samples are needed of documents without tokens."""
    per_epoch = int(request.lengths[request.documents].sum(dtype=np.int64))
    epochs = _number_of_epochs(request, per_epoch)
    before_last = _samples_in((epochs - 1) * per_epoch, request)
    separate = epochs > 1 and _last_epoch_is_short(request, per_epoch, before_last)

    random = np.random.RandomState(request.seed)
    document_index = _shuffled_epochs(request.documents, epochs, separate, random)
    sample_index = build_sample_index(request, document_index)
    samples = len(sample_index) - 1
    shuffle_index = _shuffled_ranges([0, before_last, samples] if separate else [0, samples], random)
    return GPTIndex(document_index, sample_index, shuffle_index)


def _samples_in(tokens: int, request: IndexRequest) -> int:
    return (tokens - request.extra_token) // request.sequence_length


def _number_of_epochs(request: IndexRequest, per_epoch: int) -> int:
    if not request.num_samples:
        return 1
    assert per_epoch > 0, "a split without tokens can't give samples"
    needed = request.num_samples * request.sequence_length + request.extra_token
    return -(-needed // per_epoch)


def _last_epoch_is_short(request: IndexRequest, per_epoch: int, before_last: int) -> bool:
    assert request.num_samples is not None
    from_last = request.num_samples - before_last
    return from_last < int(_SHARE_OF_LAST_EPOCH * _samples_in(per_epoch, request))


def _shuffled_epochs(
    documents: NDArray[np.int32], epochs: int, separate: bool, random: np.random.RandomState
) -> NDArray[np.int32]:
    parts = [np.tile(documents.astype(np.int32), times) for times in ([epochs - 1, 1] if separate else [epochs])]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def _shuffled_ranges(bounds: list[int], random: np.random.RandomState) -> NDArray[np.integer[Any]]:
    dtype = np.uint32 if bounds[-1] < np.iinfo(np.uint32).max - 1 else np.int64
    parts = [np.arange(begin, end, dtype=dtype) for begin, end in pairwise(bounds)]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def build_sample_index(request: IndexRequest, document_index: NDArray[np.int32]) -> NDArray[np.integer[Any]]:
    """The place where each sample begins, and a last row for the end of the last [samples + 1, 2]: position in
    `document_index`, and token in that sequence, from 0.

    Sample k, counted from 1, ends with token k * s + extra, counted from 1 over all sequences (s: tokens of a sample;
    extra: 1 or 0). With an extra token the next sample begins with that last token, else with the one after it, whose
    place is then given in the same sequence, even if it has no more tokens.
    Without `drop_last_partial` the tokens left over are one more sample, which ends with the last of them; if the last
    sequence is empty, its last row may give token -1 of that sequence.
    """
    extra = int(request.extra_token)
    lengths = request.lengths[document_index].astype(np.int64)
    ends = np.cumsum(lengths)
    tokens = int(ends[-1]) if len(ends) else 0
    samples = max(_samples_in(tokens, request), 0)
    left_over = max(tokens - extra, 0) % request.sequence_length > 0 and not request.drop_last_partial
    samples += left_over
    index = np.zeros((samples + 1, 2), dtype=_index_type(document_index, lengths))
    last_tokens = np.arange(1, samples + 1, dtype=np.int64) * request.sequence_length + extra
    at = np.searchsorted(ends, last_tokens, side="left")
    if left_over:
        at[-1] = len(ends) - 1
        last_tokens[-1] = tokens
    index[1:, 0] = at
    index[1:, 1] = last_tokens - (ends[at] - lengths[at]) - extra
    return index


def _index_type(document_index: NDArray[np.int32], lengths: NDArray[np.int64]) -> type[np.signedinteger[Any]]:
    largest = max(len(document_index), int(lengths.max(initial=0)))
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def cached_gpt_index(request: IndexRequest, folder: str | Path | None, name: str) -> GPTIndex:
    """The indices of `request`, read from files in `folder` whose names contain `name`, or built and kept there (None:
    not kept). Raises ValueError for a damaged file, and as `build_gpt_index`."""
    names = tuple(field.name for field in fields(GPTIndex))
    stem = f"{fingerprint(vars(request))}-GPTDataset-{name}"
    return GPTIndex(**cached(folder, stem, names, build=lambda: vars(build_gpt_index(request))))
