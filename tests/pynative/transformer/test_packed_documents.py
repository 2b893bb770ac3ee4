"""Documents packed into rows train as the same documents in a row each."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.documents import drawn_starts
from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import STEPS, Rows, Trained, check_layout, differences, reference, train
from tests.support.own_data import has_data, printed

LENGTHS = [(5, 11), (9, 3), (16, 0), (1, 12), (2, 2), (13, 3), (8, 8), (15, 1)]
"""Lengths of the two documents of each packed row; the rest of its 16 positions is padding. 0: there is only one."""
FLAGS = f"{TINY} --calculate-per-token-loss --attention-dropout 0 --hidden-dropout 0"
PACKED, APART = "--global-batch-size 8", "--global-batch-size 16"


def documents(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(tokens and the one behind them, loss mask) of every document of a step."""
    generator = np.random.default_rng([17, step])
    lengths = [length for row in LENGTHS for length in row]
    return [(generator.integers(1, 60, length + 1), generator.random(length) < 0.7) for length in lengths]


def row_of(parts: Sequence[tuple[np.ndarray, np.ndarray]], length: int = 16) -> dict[str, np.ndarray]:
    """One row's arrays: these documents one behind the other, then padding as a document whose loss mask is 0."""
    parts = [part for part in parts if len(part[1])]
    filled = sum(len(mask) for _, mask in parts)
    parts.append((np.zeros(length - filled + 1, int), np.zeros(length - filled, bool)))
    sizes = [len(mask) for _, mask in parts]
    starts = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    return {
        "tokens": np.concatenate([tokens[:-1] for tokens, _ in parts]).astype(np.int32),
        "labels": np.concatenate([tokens[1:] for tokens, _ in parts]).astype(np.int32),
        "loss_mask": np.concatenate([mask for _, mask in parts]).astype(np.float32),
        "position_ids": (np.arange(length) - starts).astype(np.int32),
        "document_starts": starts.astype(np.int32),
    }


def together(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def train_packed(backend, flags: str) -> Trained:
    """Train on rows of two documents and padding each."""
    steps = [documents(step) for step in range(2)]
    loader = [together([row_of(step[i : i + 2]) for i in range(0, len(step), 2)]) for step in steps]
    return train(backend, flags, train_data_loader=loader)


def train_apart(backend, flags: str) -> Trained:
    """Train on a row for each document, without document_starts: the causal order keeps a document from the padding
    behind it."""
    loader = [together([row_of([document]) for document in documents(step)]) for step in range(2)]
    for step in loader:
        del step["document_starts"]
    return train(backend, flags, train_data_loader=loader)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3))


@pytest.mark.parametrize("kernels", ["host", "ops"])
@pytest.mark.parametrize(
    "family", ["gpt", "llama", "latent attention", "window in every other layer, cap", "alibi", "recomputed"]
)
def test_packed_documents_equal_documents_apart(family, kernels):
    """Loss, and the first gradient of every parameter to 1e-6 of its largest entry; measured: 6e-8 and 6e-7."""
    more = FAMILIES.get(family, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    flags = f"{FLAGS} {more} --kernels {kernels} {STEPS}"
    (packed,), (apart,) = run(1, train_packed, f"{flags} {PACKED}"), run(1, train_apart, f"{flags} {APART}")
    np.testing.assert_allclose(packed.losses, apart.losses, rtol=1e-6)
    errors = {name: relative(packed.gradients[name], apart.gradients[name]) for name in apart.gradients}
    assert max(errors.values()) < 1e-6, errors


LAYOUTS = {
    "cp2 ring": (2, "--context-parallel-size 2"),
    "cp2 ulysses": (2, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"),
    "cp4 hybrid": (4, "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "pp2 cp2": (4, "--pipeline-model-parallel-size 2 --context-parallel-size 2"),
}


@pytest.mark.parametrize("family", ["gpt tied, dropout", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout, family):
    """Losses, gradients and updates of packed rows whose documents lie across the ranks' shards are one process's."""
    check_layout(f"{TINY} {PACKED} --calculate-per-token-loss {FAMILIES[family]}", *LAYOUTS[layout], how=train_packed)


class PackedRows(Rows):
    """A dataset of packed rows that gives document_starts."""

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return super().__getitem__(i) | {"document_starts": drawn_starts(16, 16, 3)[i]}


def train_on_dataset(backend, flags: str) -> Trained:
    return train(backend, flags, dataset=PackedRows())


def train_by_a_scripts_function(backend, flags: str) -> Trained:
    """Train by the page's forward_step, which passes the model Megatron's five entries."""
    return train(
        backend, flags, dataset=PackedRows(), has_data=has_data, forward_step_func=printed()[1]["forward_step"]
    )


def test_megatrons_functions_get_a_mask_of_documents():
    """A script's forward step, which knows no document_starts, gets an attention mask that keeps documents apart: one
    process's results."""
    world, more = LAYOUTS["tp2 sp"]
    flags = f"{TINY} {PACKED}"
    found, expected = (
        run(world, train_by_a_scripts_function, f"{flags} {more} {STEPS}"),
        reference(flags, train_on_dataset),
    )
    assert differences(found, expected) == {}
    assert abs(expected.losses[0] / reference(flags).losses[0] - 1) > 1e-4, "documents change nothing"
