"""bfloat16 under layouts against one process in bfloat16.

A pipeline and data parallelism round the same numbers in the same places and add gradients up in float32: another order
of micro-batches in one process differs by as much as they do, 1e-7. Tensor and context parallelism round partial
results too, so that they are another order of summation with other roundings: they may differ by what the type's
rounding does to one process, its distance from float32.
"""

import numpy as np
import pytest

from tests.parity.test_matrix import BASE, MODELS
from tests.support.distributed import run
from tests.support.layouts import STEPS, Trained, reference, train

FLAGS = f"{BASE} {MODELS['llama']} --num-layers 2"

SAME_ROUNDING = {"other micro-batches": (1, "--micro-batch-size 2"), "dp2": (2, "")}
SAME_ROUNDING["pp2"] = (2, "--pipeline-model-parallel-size 2")
OTHER_ROUNDING = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "cp2 ring": (2, "--context-parallel-size 2"),
}
SAME, TIMES_ROUNDING = 1e-5, 2.0
"""Tolerances, relative: SAME of layouts that round in the same places (measured: 4e-7 at most); TIMES_ROUNDING as a
multiple of one process's distance from float32 (measured: 0.6 - 1.05 in the norm, 0.3 - 0.98 in the gradient)."""
FROM_FLOAT32 = 1.5
"""The loss of a layout may be so much further from float32's than one process's. Measured: 0.6 - 1.02. A single loss is
one number: two roundings that fall on either side of float32's differ by the sum of both distances, which is twice the
type's rounding (on an AVX2 processor -1.27e-4 and +1.24e-4), without either being less exact."""


def differences(found: Trained, expected: Trained) -> dict[str, float]:
    """Largest relative differences of two runs: "loss" and "norm" over all steps, and "gradient", the first step's
    whole gradient in the L2 norm."""
    pairs = {"loss": (found.losses, expected.losses), "norm": (found.gradient_norms, expected.gradient_norms)}
    errors = {name: max(abs(a - b) / abs(b) for a, b in zip(*pair, strict=True)) for name, pair in pairs.items()}
    ours, theirs = (np.concatenate([x.gradients[n].ravel() for n in expected.gradients]) for x in (found, expected))
    return {**errors, "gradient": float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))}


def of_layout(world: int, layout: str) -> dict[str, float]:
    """The `differences` of a layout from one process, both in bfloat16."""
    return differences(run(world, train, f"{FLAGS} --bf16 {layout} {STEPS}")[0], reference(f"{FLAGS} --bf16"))


@pytest.mark.parametrize("layout", SAME_ROUNDING)
def test_the_same_roundings_in_another_order(layout):
    """Layouts of SAME_ROUNDING differ from one bfloat16 process by less than 1e-5 in losses, norms and gradient."""
    found = of_layout(*SAME_ROUNDING[layout])
    assert max(found.values()) < SAME, found


@pytest.mark.parametrize("layout", OTHER_ROUNDING)
def test_other_roundings_are_as_far_as_rounding_itself(layout):
    """OTHER_ROUNDING: loss from float32 up to 1.5, norm and gradient from one process up to 2 times bf16's rounding."""
    world, flags = OTHER_ROUNDING[layout]
    one, exact = reference(f"{FLAGS} --bf16"), reference(FLAGS)
    found = run(world, train, f"{FLAGS} --bf16 {flags} {STEPS}")[0]
    from_one, from_exact, rounding = differences(found, one), differences(found, exact), differences(one, exact)
    assert min(rounding.values()) > 1e-5, "the type rounds, or nothing was compared"
    assert from_exact["loss"] < FROM_FLOAT32 * rounding["loss"], (from_exact, rounding)
    assert all(from_one[name] < TIMES_ROUNDING * rounding[name] for name in ("norm", "gradient")), (from_one, rounding)
