"""Small corpora and tokenizers for the tests of the data pipeline."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.tokenizers import MegatronTokenizer


class FixedTokenizer(MegatronTokenizer):
    """Ids without a text: for data that is already tokenised."""

    def __init__(self, vocab_size: int, eod: int, pad: int | None) -> None:
        self._ids = vocab_size, eod, pad

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError

    def detokenize(self, token_ids: Sequence[int]) -> str:
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        return self._ids[0]

    @property
    def vocab(self) -> dict[str, int]:
        return {}

    @property
    def eod(self) -> int:
        return self._ids[1]

    @property
    def pad(self) -> int | None:
        return self._ids[2]


def write_corpus(prefix: Path, lengths: Sequence[int], vocab_size: int = 100, seed: int = 0) -> str:
    """Random documents of these lengths under `prefix`, each ended by id `vocab_size - 1`."""
    random = np.random.default_rng(seed)
    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        for length in lengths:
            tokens = random.integers(0, vocab_size - 1, size=length)
            tokens[-1:] = vocab_size - 1
            builder.add_document(tokens, [length])
        builder.finalize()
    return str(prefix)
