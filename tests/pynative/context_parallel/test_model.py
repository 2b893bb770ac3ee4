"""Whole models with context parallelism against one process: losses, every gradient, weights."""

from itertools import product

import numpy as np
import pytest

from tests.support.documents import batches, train_on_documents
from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import check_layout, train

RING, ULYSSES = "--context-parallel-algo megatron_cp_algo", "--context-parallel-algo ulysses_cp_algo"
HYBRID = "--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
LAYOUTS = {
    "cp2 ring": (2, f"--context-parallel-size 2 {RING}"),
    "cp2 ulysses": (2, f"--context-parallel-size 2 {ULYSSES}"),
    "cp4 ring": (4, f"--context-parallel-size 4 {RING}"),
    "cp4 ulysses": (4, f"--context-parallel-size 4 {ULYSSES}"),
    "cp4 hybrid": (4, f"--context-parallel-size 4 {HYBRID}"),
    "tp2 cp2 ring": (4, f"--context-parallel-size 2 {RING} --tensor-model-parallel-size 2"),
    "tp2 sp cp2 ring": (4, f"--context-parallel-size 2 {RING} {TP2_SP}"),
    "tp2 sp cp2 ulysses": (4, f"--context-parallel-size 2 {ULYSSES} {TP2_SP}"),
    "pp2 cp2 ring": (4, f"--context-parallel-size 2 {RING} --pipeline-model-parallel-size 2"),
    "pp2 cp2 ulysses": (4, f"--context-parallel-size 2 {ULYSSES} --pipeline-model-parallel-size 2"),
    "cp2 dp2": (4, "--context-parallel-size 2"),
}
ROWS = [("gpt tied, dropout", layout) for layout in LAYOUTS]
ROWS += [
    (family, layout)
    for family in ("llama", "head norms, part of the head turns", "per token loss")
    for layout in ("cp2 ring", "cp2 ulysses", "cp4 hybrid", "tp2 sp cp2 ring", "pp2 cp2 ring", "cp2 dp2")
]


@pytest.mark.parametrize(("family", "layout"), ROWS)
def test_a_layout_equals_one_process(family, layout):
    """Each family under each layout, with dropout in attention, positions by the global index, and loss masks that
    differ between micro-batches and ranks."""
    samples = 8 if "dp2" in layout or family.startswith("head norms") else 4  # of fewer a key bias has rounding alone
    check_layout(f"{TINY} --global-batch-size {samples} {FAMILIES[family]}", *LAYOUTS[layout])


def train_on_masked(backend, flags: str) -> tuple:
    """Train where all of some ranks' tokens are masked: with cp4 only one ring member's, or one Ulysses
    rank's, count."""
    return train(backend, flags, train_data_loader=batches())


def train_on_given_masks(backend, flags: str) -> tuple:
    """Train on batches that bring an attention mask and positions of their own, which the framework cuts."""
    generator = np.random.default_rng(3)
    hidden = ~np.tri(16, dtype=bool) | (generator.random((8, 1, 16, 16)) < 0.3)
    positions = generator.integers(0, 16, (8, 16)).astype(np.int32)
    steps = [{**step, "attention_mask": hidden, "position_ids": positions} for step in batches()]
    return train(backend, flags, train_data_loader=steps)


KINDS = [train_on_masked, train_on_documents, train_on_given_masks]
MASKED = ["cp2 ring", "cp4 ring", "cp4 ulysses", "cp4 hybrid", "pp2 cp2 ulysses"]
AVERAGED = ["", "--calculate-per-token-loss"]
EVERY_MASK = list(product(KINDS, MASKED, AVERAGED))
IN_TURNS = [(how, layout, AVERAGED[(i + j) % 2]) for i, how in enumerate(KINDS) for j, layout in enumerate(MASKED)]


def check_masks(how, layout: str, averaged: str) -> None:
    check_layout(f"{TINY} --global-batch-size 8 {averaged}", *LAYOUTS[layout], how=how)


@pytest.mark.parametrize(("how", "layout", "averaged"), IN_TURNS)
def test_masks(how, layout, averaged):
    """Loss masks of zeros on some ranks, given attention masks, and documents: one process's losses without NaN,
    averaged over whole sequences, documents apart across ranks."""
    check_masks(how, layout, averaged)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("how", "layout", "averaged"), EVERY_MASK)
def test_every_mask(how, layout, averaged):
    """Each (kind of masks or documents, layout, kind of average) of EVERY_MASK trains as one process does."""
    check_masks(how, layout, averaged)
