"""Training on weights of 4 bits: quantisation-aware (--qat-scheme), and adapters beside a rounded base (--qlora)."""

from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.numerics.block_formats import mxfp4, nf4
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import STEPS, check_layout, reference, train

WIDE = f"{TINY} --hidden-size 64 --ffn-hidden-size 128 --global-batch-size 8 {FAMILIES['llama']}"
"""Sizes with which every rank has whole blocks of one scale, so that no layout rounds differently."""
EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 32 --moe-token-dispatcher-type alltoall --moe-grouped-gemm"
EP2 = "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1"
TP2_EP2 = f"--tensor-model-parallel-size 2 --sequence-parallel {EP2}"
ADAPTERS = "--lora-r 3 --lora-alpha 6 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"
LINEARS = ("linear_qkv.weight", "linear_proj.weight", "linear_fc1.weight", "linear_fc2.weight")


@pytest.mark.parametrize("scheme", ["w4a16-mxfp4", "w4a16-mxfp4-moe-only"])
def test_quantisation_aware_training_on_two_ranks_is_that_on_one(scheme):
    """tp2 x ep2 equals one process; both schemes and training without quantisation have different losses."""
    flags = f"{WIDE} {EXPERTS} --qat-scheme"
    check_layout(f"{flags} {scheme}", 2, TP2_EP2)
    schemes = [reference(f"{flags} {one}") for one in ("w4a16-mxfp4", "w4a16-mxfp4-moe-only")]
    plain = reference(f"{WIDE} {EXPERTS}")
    assert len({found.losses[0] for found in (*schemes, plain)}) == 3


def from_weights(backend, flags, arrays):
    """Train from these whole arrays as initial weights."""
    from pynative.checkpointing.weights import load_weights

    with patch("pynative.training.training.initialize_parameters", lambda model, seed: load_weights(model, arrays)):
        return train(backend, flags)


def test_a_model_of_rounded_weights_has_the_same_loss_without_rounding():
    """Initial weights that are MXFP4 numbers round to themselves: loss and first gradients with and without QAT are the
    same bits."""
    found = reference(f"{WIDE} --qat-scheme w4a16-mxfp4")
    names = {name for name in found.initial if name.endswith(LINEARS) or name == "output_layer.weight"}
    rounded = {name: mxfp4(array) if name in names else array for name, array in found.initial.items()}
    plain = run(1, from_weights, f"{WIDE} {STEPS}", rounded)[0]
    assert len(names) == 9 and plain.losses[0] == found.losses[0]
    for name, gradient in found.gradients.items():
        np.testing.assert_array_equal(gradient, plain.gradients[name], err_msg=name)


def test_the_base_of_adapters_is_rounded_once(tmp_path):
    """--qlora: the layers' linears are the NF4 numbers of their usual initial values to the last step, other weights of
    the base are not rounded; a resumed run keeps both."""
    flags = f"{WIDE} {ADAPTERS}"
    plain, found = (
        run(1, train, f"{flags} {STEPS}")[0],
        run(1, train, f"{flags} --qlora {STEPS} --save {tmp_path} --save-interval 1 --lr-decay-iters 3")[0],
    )
    for name, values in plain.initial.items():
        rounds = name.endswith(LINEARS) and "layers" in name
        expected = nf4(values) if rounds else values
        if ".adapter." in name:
            continue
        np.testing.assert_array_equal(found.final[name], expected, err_msg=name)
        assert rounds == (not np.array_equal(expected, values)) or not values.any()
    again = run(1, train, f"{flags} --qlora {STEPS} --train-iters 3 --load {tmp_path} --lr-decay-iters 3")[0]
    for name, values in found.final.items():
        if ".adapter." not in name:
            np.testing.assert_array_equal(again.final[name], values, err_msg=name)
