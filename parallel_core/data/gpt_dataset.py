"""Samples of s tokens for a left-to-right language model, equal to Megatron's GPTDataset."""

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_core.batch.documents import starts_after
from parallel_core.data.dataset_config import GPTDatasetConfig, Split
from parallel_core.data.gpt_index import IndexRequest, cached_gpt_index
from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.tokenizers import Facts, MegatronTokenizer
from parallel_core.numerics.dtypes import Array

Sample = dict[str, Array]
"""tokens [s] int32, labels [s] int32, position_ids [s] int32, loss_mask [s] float32 (1: the label counts), and, where
`reset_attention_mask` asks for it, document_starts [s] int32 (the first position of each position's document)."""

_TOKENS_CHECKED = 1 << 22
"""The number of ids that are compared with the vocabulary when a data set is opened: enough to find a wrong tokenizer
at once."""


class Sequences(Protocol):
    """The sequences that a GPTDataset reads: an IndexedDataset, or something that behaves like one."""

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sequence [n]."""

    def get(self, i: int, offset: int = 0, length: int | None = None) -> NDArray[np.number[Any]]:
        """`length` tokens (None: all that are left) of sequence `i` from token `offset`."""


class GPTDataset:
    """The samples of one split of one data set."""

    def __init__(
        self,
        dataset: Sequences,
        indices: NDArray[np.int32],
        num_samples: int | None,
        index_split: Split,
        config: GPTDatasetConfig,
        dataset_path: str | None = None,
    ) -> None:
        """indices: numbers of the sequences of this split. num_samples: the number of samples that are needed (None:
        one epoch). dataset_path: name of the data in messages.

        Raises ValueError when samples are needed and the split has no tokens, and for a damaged file of indices.
        """
        self.dataset = dataset
        self.num_samples = num_samples
        self.index_split = index_split
        self.config = config
        self.path = dataset_path
        self._pad = -1 if config.tokenizer.pad is None else config.tokenizer.pad
        if num_samples and not dataset.sequence_lengths[indices].any():
            raise ValueError(
                f"{num_samples} samples are needed of the {index_split.name} split of {dataset_path or 'the data'}, "
                f"which has no tokens ({len(indices)} of {len(dataset.sequence_lengths)} sequences; a split has whole "
                "documents): give that split a larger share in --split, or more documents, or ask for no evaluation "
                "with --eval-iters 0"
            )
        index = cached_gpt_index(self._index_request(indices), config.path_to_cache, index_split.name)
        self.document_index, self.sample_index = index.document_index, index.sample_index
        self.shuffle_index = index.shuffle_index

    def _index_request(self, indices: NDArray[np.int32]) -> IndexRequest:
        valid = self.index_split is Split.valid
        return IndexRequest(
            lengths=self.dataset.sequence_lengths,
            documents=indices,
            num_samples=self.num_samples,
            sequence_length=self.config.sequence_length,
            seed=self.config.random_seed,
            extra_token=self.config.add_extra_token_to_sequence,
            drop_last_partial=self.config.drop_last_partial_validation_sequence or not valid,
        )

    @staticmethod
    def open(path_prefix: str | Path | None, config: GPTDatasetConfig) -> Sequences:
        """The sequences of the files `path_prefix`.bin and .idx. Raises ValueError when files are missing or damaged,
        or one of the first 4,194,304 ids is not below the vocabulary's size; later ids are not looked at. Raises
        AssertionError for None."""
        assert path_prefix is not None
        dataset = IndexedDataset(path_prefix, config.mmap_bin_files)
        largest = int(dataset.tokens[:_TOKENS_CHECKED].max(initial=0))
        if largest >= config.tokenizer.vocab_size:
            raise ValueError(
                f"{path_prefix} has token id {largest}, but the vocabulary has {config.tokenizer.vocab_size} entries: "
                "it was made with another tokenizer; give the one it was made with, or preprocess the text again"
            )
        return dataset

    def __len__(self) -> int:
        """The number of samples; at least `num_samples` where that was given."""
        return len(self.sample_index) - 1

    def __getitem__(self, i: int) -> Sample:
        """Sample `i` in the shuffled order. The padding id becomes 0 in tokens and labels, and has loss mask 0 as a
        label."""
        text = self._text(int(self.shuffle_index[i]))
        if self.config.add_extra_token_to_sequence:
            tokens, labels = text[:-1].copy(), text[1:].copy()
        else:
            tokens, labels = text, np.append(text[1:], np.int32(self._pad))
        sample = self._masks_and_positions(tokens)
        padding = labels == self._pad
        if padding.any():
            sample["loss_mask"] = np.where(padding, np.float32(0), sample["loss_mask"])
        # The padding id may have no row in the embedding.
        tokens[tokens == self._pad] = 0
        labels[padding] = 0
        return {"tokens": tokens, "labels": labels, **sample}

    def _text(self, k: int) -> NDArray[np.int32]:
        """The tokens of sample `k` in the order before shuffling [s, or s + 1 with the extra token], padded at the
        end."""
        (first, begin), (last, end) = self.sample_index[k].tolist(), self.sample_index[k + 1].tolist()
        end += self.config.add_extra_token_to_sequence
        text = np.full(self.config.sequence_length + self.config.add_extra_token_to_sequence, self._pad, np.int32)
        filled = 0
        for at in range(first, last + 1):
            offset = begin if at == first else 0
            part = self.dataset.get(int(self.document_index[at]), offset, end - offset if at == last else None)
            text[filled : filled + len(part)] = part
            filled += len(part)
        return text

    def documents_of(self, i: int) -> str:
        """A text with the name of the data (the prefix of their files), the numbers of the sequences that sample `i`
        goes through, some of which may add no token to it, and the number of tokens of the first of these sequences
        that lie before the sample."""
        k = int(self.shuffle_index[i])
        (first, begin), (last, end) = self.sample_index[k].tolist(), self.sample_index[k + 1].tolist()
        stop = last + (end + self.config.add_extra_token_to_sequence > 0)
        sequences = ", ".join(str(int(number)) for number in self.document_index[first:stop])
        return f"{self.path or 'the data'}, sequences {sequences} (from token {begin} of the first)"

    def _masks_and_positions(self, tokens: NDArray[np.int32]) -> Sample:
        config, sample = self.config, dict(self._plain_masks_and_positions)
        if not (config.reset_position_ids or config.reset_attention_mask or config.eod_mask_loss):
            return sample
        is_eod = tokens == config.tokenizer.eod
        if config.eod_mask_loss:
            sample["loss_mask"] = np.where(is_eod, np.float32(0), np.float32(1))
        starts = starts_after(is_eod)
        if config.reset_position_ids:
            sample["position_ids"] = sample["position_ids"] - starts
        if config.reset_attention_mask:
            sample["document_starts"] = starts
        return sample

    @cached_property
    def _plain_masks_and_positions(self) -> Sample:
        """The loss mask and positions of a sample that is one document; shared by all such samples, so read-only."""
        s = self.config.sequence_length
        plain: Sample = {"loss_mask": np.ones(s, np.float32), "position_ids": np.arange(s, dtype=np.int32)}
        for array in plain.values():
            array.flags.writeable = False
        return plain


class MockSequences:
    """Made-up text: 100,000 sequences 1, 2, 3, ... (modulo the vocabulary's size), each of a random length from 1 to
    4095 tokens, the last of which is the end of document; the same in every run."""

    def __init__(self, tokenizer: Facts | MegatronTokenizer) -> None:
        self._tokenizer = tokenizer
        # Megatron's lengths. Its ids reach 4095 whatever the vocabulary; these wrap around at the vocabulary's size.
        self.sequence_lengths = np.random.default_rng(seed=0).integers(1, 4096, size=100_000, dtype=np.int32)

    def get(self, i: int, offset: int = 0, length: int | None = None) -> NDArray[np.number[Any]]:
        """`length` tokens (None: all that are left) of sequence `i` from token `offset`."""
        whole = int(self.sequence_lengths[i])
        end = whole if length is None else offset + length
        tokens = np.arange(offset + 1, end + 1) % self._tokenizer.vocab_size
        if end == whole and end > offset:
            tokens[-1] = self._tokenizer.eod
        return tokens


class MockGPTDataset(GPTDataset):
    """A GPTDataset that needs no files (`--mock-data`)."""

    @staticmethod
    def open(path_prefix: str | Path | None, config: GPTDatasetConfig) -> Sequences:
        """The made-up text; `path_prefix` is not used."""
        return MockSequences(config.tokenizer)
