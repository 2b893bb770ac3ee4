"""Small corpora and a tokenizer for the tests of the data pipeline."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.tokenizers import MegatronTokenizer, TokenizerOptions, build_tokenizer


def null_tokenizer(vocab_size: int) -> MegatronTokenizer:
    """A NullTokenizer of `vocab_size` ids, for data that are ids already."""
    return build_tokenizer(TokenizerOptions("NullTokenizer", vocab_size=vocab_size))


def write_corpus(prefix: Path, lengths: Sequence[int], vocab_size: int = 100, seed: int = 0) -> str:
    """Write random documents of these lengths under `prefix`, each ended by id `vocab_size - 1`; the prefix."""
    random = np.random.default_rng(seed)
    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        for length in lengths:
            tokens = random.integers(0, vocab_size - 1, size=length)
            tokens[-1:] = vocab_size - 1
            builder.add_document(tokens, [length])
        builder.finalize()
    return str(prefix)
