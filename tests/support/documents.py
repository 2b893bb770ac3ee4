"""Batches whose rows are several documents, and a run on them."""

import numpy as np

from parallel_core.batch.documents import starts_after
from tests.support.layouts import train


def batches() -> list[dict[str, np.ndarray]]:
    """Two steps of eight rows without position_ids, whose end-of-document token is 7; only tokens of the third quarter
    of the first six rows have a loss."""
    generator = np.random.default_rng(11)
    steps = []
    for _ in range(2):
        tokens = generator.integers(0, 60, (8, 17)).astype(np.int32)
        tokens[generator.random((8, 17)) < 0.15] = 7
        mask = np.zeros((8, 16), np.float32)
        mask[:6, 8:12] = generator.random((6, 4)) < 0.8
        steps.append({"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "loss_mask": mask})
    return steps


def drawn_starts(batch: int, length: int, seed: int, ends: float = 0.2) -> np.ndarray:
    """Document starts [b, s]: a position ends its document with this probability."""
    return starts_after(np.random.default_rng([seed, batch, length]).random((batch, length)) < ends)


def train_on_documents(backend, flags: str) -> tuple:
    """Train on `batches`, of which the model makes masks and positions by the end-of-document token 7."""
    return train(backend, flags, {"eod": 7, "reset_position_ids": True}, train_data_loader=batches())
