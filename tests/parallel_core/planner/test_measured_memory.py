"""Predicted memory of our engine against bytes that `python benchmarks/planner.py` counted on a CPU."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.planner import LAYOUTS, flags_of
from mapping.plan import plan_of
from parallel_core.planner.beside import MEMORY_PARTS, predicted_bytes

SIZES = Namespace(hidden=512, layers=4, heads=8, seq=512, mbs=2, vocab=4096, micro_batches=4, steps=6)
MEASURED = {
    "one rank": (355413059,),
    "recompute": (294213950,),
    "tensor": (193679717,),
    "sequence": (185273592,),
    "1f1b": (254950541, 205924800),
    "interleaved": (278648094, 233346791),
    "zb-h1": (293754993, 325102164),
    "gpipe": (349548493, 408946807),
    "data": (355413229,),
    "context": (296590254,),
    "experts": (611575346,),
}
"""Layout of the benchmark -> measured bytes of a rank of each stage: weights, gradients, states and the peak of
activations together."""


@pytest.mark.parametrize("layout", MEASURED)
def test_memory_of_measured_layouts(layout):
    """The predicted sum of these parts is within 1.5% of the measured one on every stage."""
    plan = plan_of(flags_of(SIZES, layout, "CPU"), LAYOUTS[layout][0], "CPU")
    for stage, measured in enumerate(MEASURED[layout]):
        parts = predicted_bytes(plan, stage)
        assert sum(parts[name] for name in MEMORY_PARTS) == pytest.approx(measured, rel=0.015)
