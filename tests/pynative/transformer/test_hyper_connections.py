"""Layers on several residual streams under every layout: stages send all streams, ranks of a sequence have all streams
of their own tokens.

Streams begin alike, so that gradients of the scales are differences of equal numbers: here they begin apart.
"""

import numpy as np
import pytest

from parallel_core.initial_values import Normal
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.families import FAMILIES, STREAMS
from tests.support.layouts import STEPS, Trained, differences, reference, train

MODEL = f"{TINY} --global-batch-size 8 {STREAMS} {FAMILIES['llama']} --mtp-num-layers 1"
TP2 = "--tensor-model-parallel-size 2"
LAYOUTS = {
    "tp2 sp": (2, f"{TP2} --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "cp2": (2, "--context-parallel-size 2"),
    "zero 3": (2, "--zero-stage 3"),
}
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def with_streams_apart(backend, flags: str) -> Trained:
    """`train` a model whose stream weights begin random, so that streams differ from the first block on."""
    from pynative.transformer.gpt_model import GPTModel

    def build(config, **stage):
        model = GPTModel(config, **stage)
        for path, parameter in model.parameters_and_names():
            if path.endswith("hc_base"):
                parameter.meta.initial = Normal(1.0)
            if path.endswith("hc_fn.weight"):
                parameter.meta.initial = Normal(0.2)
        return model

    return train(backend, flags, build=build)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout):
    """Losses, every gradient, updates and states, with layers that predict further tokens too.

    Of scales and bases, few sums of terms that cancel, twice the tolerance: one process's moments differ by as much as
    the tolerance between two instruction sets.
    """
    world, flags = LAYOUTS[layout]
    found = run(world, with_streams_apart, f"{MODEL} {flags} {STEPS}")
    wrong = differences(found, reference(MODEL, with_streams_apart))
    rest = {name: error for name, error in wrong.items() if error > 2 or not name.endswith((".hc_scale", ".hc_base"))}
    assert not rest, f"off, in units of what is tolerated: {rest}"


@pytest.mark.parametrize("recompute", ["--recompute-granularity selective --recompute-modules core_attn mlp", FULL])
def test_recomputation_changes_no_bit(recompute):
    """Recompute of blocks between reading and writing the streams, and of whole layers: the bits of a run without."""
    plain, again = (run(1, train, f"{MODEL} {STEPS} {more}")[0] for more in ("", recompute))
    assert plain.losses == again.losses and plain.digests == again.digests


def test_both_implementations_agree():
    """One model by `host` and by `ops` kernels.

    Gradients of scales and bases are a few sums of terms that cancel, and may be small beside the rounding of those:
    they are held to the largest of their kind, and each operator to float64 in the tests of operators.
    """
    expected, found = reference(MODEL, with_streams_apart), run(1, with_streams_apart, f"{MODEL} --kernels ops {STEPS}")
    wrong = differences(found, expected)
    assert not [name for name in wrong if not name.endswith((".hc_scale", ".hc_base"))], wrong
    sums = {name: value for name, value in expected.gradients.items() if name.endswith((".hc_scale", ".hc_base"))}
    largest = max(np.abs(value).max() for value in sums.values())
    for name, value in sums.items():
        np.testing.assert_allclose(found[0].gradients[name], value, rtol=0, atol=1e-5 * largest, err_msg=name)
