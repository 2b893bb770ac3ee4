"""Every model family gives the same losses, gradients and weights however the work is split."""

from itertools import pairwise

import pytest

from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import check_layout, reference

LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2": (2, ""),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "tp4": (4, "--tensor-model-parallel-size 4"),
    "tp4, ops": (4, "--tensor-model-parallel-size 4 --kernels ops"),
    "tp4 sp": (4, "--tensor-model-parallel-size 4 --sequence-parallel"),
    "pp2 dp2, stages first": (4, "--pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping"),
    "tp2 pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "tp2 sp pp2": (4, "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"),
    "tp2 sp zb-h1": (
        4,
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1",
    ),
}
# Every family under tensor, pipeline and data parallelism; larger layouts only where they test more.
ROWS = [(family, layout) for family in FAMILIES for layout in ("tp2", "tp2 sp", "pp2", "dp2")]
ROWS += [
    ("gpt tied, dropout", "tp2 pp2"),
    ("gpt tied, dropout", "pp2 dp2, stages first"),
    ("gpt", "tp4"),
    ("gpt tied, dropout", "tp4 sp"),
    ("gpt tied, dropout", "tp2 sp pp2"),
    ("llama", "tp2 sp pp2"),
    ("gpt tied, dropout", "tp2 sp zb-h1"),
    ("squared relu", "tp4"),
    ("llama", "tp4"),
    ("head norms on one shared group", "tp4 sp"),
    ("head norms on one shared group", "tp4, ops"),
    ("per token loss", "tp2 pp2"),
]


ADDED_UP = {"gpt tied, dropout", "per token loss", "experts", "sparse attention"}
"""Families that have two micro-batches on a data-parallel rank; the others have one, as adding up gradients is not
theirs."""


def flags_of(family: str, samples: int = 4) -> str:
    """A family's command line with micro-batches of two samples; of 8 samples for "head norms", as a key bias's
    gradient would be rounding alone with four."""
    return f"{TINY} --global-batch-size {8 if family.startswith('head norms') else samples} {FAMILIES[family]}"


@pytest.mark.parametrize(("family", "layout"), ROWS)
def test_a_layout_equals_one_process(family, layout):
    """Loss masks differ between micro-batches, so an average in the wrong place shows, and dropout masks follow the
    global place."""
    check_layout(flags_of(family, 8 if "dp2" in layout and family in ADDED_UP else 4), *LAYOUTS[layout])


def test_every_family_is_another_model():
    """Each family's second loss differs from all others', so none of its flags is without effect."""
    losses = sorted((reference(flags_of(family))[0][1], family) for family in FAMILIES)
    for (one, first), (other, second) in pairwise(losses):
        assert other - one > 1e-5, (first, second)
