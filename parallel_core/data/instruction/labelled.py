"""Data files that hold, behind each sequence's tokens, as many labels (`--train-mode finetune`)."""

from typing import Any

import numpy as np

from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.numerics.dtypes import Array


class LabelledDataset:
    """Samples of a data set whose own samples hold s tokens and behind them s labels: label i is that of token i + 1.

    A negative token -1 - i is the token i that ends a conversation. The loss mask of a conversation's part of a sample
    (of the whole sample, if conversations are not kept apart) sums up to one, however long its answers are, or to 0
    without labels.
    """

    def __init__(self, dataset: Any, seq_length: int, keeps_apart: bool) -> None:
        """dataset: samples of 2 * seq_length tokens. keeps_apart: conversations do not attend to each other
        (--reset-position-ids)."""
        self.dataset, self.seq_length, self.keeps_apart = dataset, seq_length, keeps_apart

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Sample `number`: tokens, labels, loss_mask, position_ids and, where conversations are kept apart,
        document_starts; each [s]."""
        text = self.dataset[number]["tokens"].astype(np.int32)
        tokens, labels = text[: self.seq_length], text[self.seq_length :]
        places = np.arange(self.seq_length, dtype=np.int32)
        starts = np.zeros_like(places)
        if self.keeps_apart:
            starts[1:] = np.where(tokens[:-1] < 0, places[1:], 0)
            starts = np.maximum.accumulate(starts)
        counts = labels != IGNORED
        sums = np.bincount(starts, weights=counts, minlength=self.seq_length)
        sample = {
            "tokens": np.where(tokens < 0, -1 - tokens, tokens).astype(np.int32),
            "labels": np.where(counts, labels, 0).astype(np.int32),
            "loss_mask": (counts / np.maximum(sums[starts], 1)).astype(np.float32),
            "position_ids": places - starts,
        }
        return {**sample, "document_starts": starts} if self.keeps_apart else sample
