"""Our training loop against what real Megatron-Core recorded: a row a case and layout.

Each case is replayed to its end by one process or a small layout; the other layouts replay its first steps, which hold
the first gradients and updates of every kind. `-m exhaustive` replays each layout to the end.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.parity.replay import SCRIPT
from tests.parity.samples import check_samples
from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.goldens import golden

OVERLAP = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 20000"
LAYOUTS = {
    "1 rank": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "tp4": (4, "--tensor-model-parallel-size 4"),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "pp4": (4, "--pipeline-model-parallel-size 4"),
    "pp2 vpp2": (2, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
    "pp2 zb-h1": (2, "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"),
    "pp4 zb-h1": (4, "--pipeline-model-parallel-size 4 --pipeline-schedule zb-h1"),
    "dp2": (2, ""),
    "dp2 distopt": (2, "--use-distributed-optimizer"),
    "dp4 distopt": (4, "--use-distributed-optimizer"),
    "dp2 tp2 sp distopt": (4, "--use-distributed-optimizer --tensor-model-parallel-size 2 --sequence-parallel"),
    "dp2 pp2 distopt": (4, "--use-distributed-optimizer --pipeline-model-parallel-size 2"),
    "dp2 zero 2": (2, "--zero-stage 2 --overlap-grad-reduce"),
    "dp2 zero 3": (2, "--zero-stage 3 --overlap-grad-reduce"),
    "dp4 zero 2": (4, "--zero-stage 2"),
    "dp4 zero 3": (4, "--zero-stage 3"),
    "dp2 pp2 zero 2": (4, "--zero-stage 2 --pipeline-model-parallel-size 2"),
    "dp2 cp2 zero 3": (4, "--zero-stage 3 --context-parallel-size 2 --overlap-grad-reduce"),
    "dp2 tp2 overlap": (4, f"{OVERLAP} --tensor-model-parallel-size 2"),
    "dp2 tp2 sp zero 3": (4, "--zero-stage 3 --tensor-model-parallel-size 2 --sequence-parallel"),
    "dp2 cp2 distopt": (4, "--use-distributed-optimizer --context-parallel-size 2"),
    "dp2 overlap": (2, OVERLAP),
    "dp2 pp2 overlap": (4, f"{OVERLAP} --pipeline-model-parallel-size 2"),
    "dp2 pp2 zb-h1 overlap": (4, f"{OVERLAP} --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"),
    "dp2 pp2 vpp2 overlap": (
        4,
        f"{OVERLAP} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    "tp2 pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "ep2": (2, "--expert-model-parallel-size 2"),
    "cp2 ring": (2, "--context-parallel-size 2"),
    "cp2 ulysses": (2, "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"),
    "ep2 grouped": (2, "--expert-model-parallel-size 2 --moe-grouped-gemm"),
    "ep2 tp2 sp, whole experts": (
        4,
        "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-tensor-parallel-size 1",
    ),
    "ep4": (4, "--expert-model-parallel-size 4"),
    "ep2 tp2": (4, "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1"),
    "ep2 etp2": (4, "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel"),
    "ep2 pp2": (4, "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "ep2 pp2 vpp2": (
        4,
        "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    "ep2 cp2 ring": (2, "--expert-model-parallel-size 2 --context-parallel-size 2"),
    "ep2 cp2 ulysses": (
        4,
        "--expert-model-parallel-size 2 --context-parallel-size 2 --context-parallel-algo ulysses_cp_algo",
    ),
    "ep2 pp2 zb-h1": (4, "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"),
    "ep2 dp4 distopt": (4, "--expert-model-parallel-size 2 --use-distributed-optimizer"),
    "ep2 distopt": (2, "--expert-model-parallel-size 2 --use-distributed-optimizer --moe-grouped-gemm"),
    "ep2 pp2 distopt": (
        4,
        "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer",
    ),
    "cp4 hybrid": (4, "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"),
}
ROWS = [
    ("llama", "dp2 zero 2"),
    ("llama", "dp2 tp2 sp zero 3"),
    *[("gpt2", layout) for layout in LAYOUTS if layout not in ("tp4", "pp4", "pp4 zb-h1") and "ep" not in layout],
    ("llama", "1 rank"),
    ("llama", "tp4"),
    ("llama", "tp2 sp"),
    ("llama", "pp4"),
    ("llama", "tp2 pp2"),
    ("llama", "cp2 ring"),
    ("llama", "pp2 vpp2"),
    *[("mtp", layout) for layout in ("1 rank", "tp2 sp", "pp2 vpp2", "cp2 ring")],
    *[("deepseek", layout) for layout in ("ep2 grouped", "ep2 tp2 sp, whole experts", "ep2 pp2 zb-h1")],
    *[("moe_capacity", layout) for layout in ("1 rank", "ep2")],
    ("mla", "1 rank"),
    ("mla", "tp2 sp"),
    ("mla", "cp2 ring"),
    ("dsa", "1 rank"),
    *[("gated_delta_net", layout) for layout in ("1 rank", "tp2 sp", "cp2 ring")],
    *[("mixtral", layout) for layout in ("1 rank", "ep2 grouped", "ep4", "ep2 etp2", "ep2 pp2", "ep2 cp2 ring")],
    *[("moe_shared_zloss", layout) for layout in ("1 rank", "ep2", "ep2 tp2", "ep2 pp2 vpp2", "ep2 cp2 ulysses")],
    ("deepseek", "1 rank"),
    ("moe_shared_zloss", "ep2 tp2 sp, whole experts"),
    ("mixtral", "ep2 pp2 zb-h1"),
    ("moe_shared_zloss", "ep2 dp4 distopt"),
    ("qwen", "1 rank"),
    ("qwen", "tp2 sp"),
    ("qwen", "cp2 ulysses"),
    ("qwen", "dp2 zero 3"),
    ("neox_rotary_pct", "tp2"),
    ("gpt2_masked", "dp2"),
    ("gpt2_masked", "cp2 ring"),
    ("gpt2_masked_per_token", "dp2"),
    ("gpt2_masked_per_token", "tp2 pp2"),
    ("gpt2_masked_per_token", "cp2 ring"),
    ("gpt2_masked_per_token", "pp4 zb-h1"),
]
WHOLE_RUNS = [
    *[("gpt2", layout) for layout in ("1 rank", "dp2 pp2 zb-h1 overlap")],
    *[(name, "1 rank") for name in ("llama", "mtp", "moe_capacity", "mla", "mixtral", "moe_shared_zloss", "deepseek")],
    *[(name, "1 rank") for name in ("qwen", "dsa", "gated_delta_net")],
    *[("neox_rotary_pct", "tp2"), ("gpt2_masked", "dp2"), ("gpt2_masked_per_token", "dp2")],
]
"""(case, layout) in float32 that are replayed to the end."""
OTHER_PATHS = [
    ("llama", "pp2"),
    ("gpt2", "tp2 sp"),
    ("gpt2", "cp2 ring"),
    ("gpt2", "pp2 zb-h1"),
]

OF_DENSE_IN_16_BITS = [
    layout for layout, (world, _) in LAYOUTS.items() if world <= 2 and layout != "pp2 zb-h1" and "ep" not in layout
]
SIXTEEN_BITS = [
    *[("llama_bf16", layout) for layout in OF_DENSE_IN_16_BITS],
    *[("gpt2_fp16", layout) for layout in ("1 rank", "tp2", "tp2 sp", "pp2", "pp2 vpp2", "cp2 ring")],
    ("llama_bf16_distopt", "dp2"),
    ("mixtral_bf16_distopt", "ep2 distopt"),
    ("mixtral_bf16_distopt", "ep2 pp2 distopt"),
]
"""(case, layout) in 16 bits. float16 at one data-parallel size only: which steps overflow follows from the number of
micro-batches a rank."""


WHOLE_RUNS_IN_16_BITS = [
    *[("llama_bf16", layout) for layout in ("1 rank", "dp2 zero 3")],
    *[("gpt2_fp16", layout) for layout in ("1 rank", "tp2 sp")],
    *[("llama_bf16_distopt", "dp2"), ("mixtral_bf16_distopt", "ep2 distopt")],
]
"""(case, layout) in 16 bits that are replayed to the end; of float16 a cut layout, too, whose steps are skipped again
late in the run."""


class Limits(NamedTuple):
    """The allowed distance of a 16-bit run from the recorded one, of `steps` steps; the loss's is absolute."""

    steps: int
    lm_loss: float
    grad_norm: float
    """Limit for the norm of the gradient, relative."""
    gradients: float = 0.0
    """Limit for gradients of the first step, relative to each parameter's largest entry; where the case has them."""
    weights: float = 0.0
    """Limit for weights after the last step, absolute; where the case has them."""


OF_BF16 = Limits(20, lm_loss=8e-4, grad_norm=1e-2, gradients=1.25e-2, weights=1.6e-2)
"""Megatron-Core itself under other layouts (agreement.json): loss 4.1e-4, norm 2.9e-3, weights 7.8e-3, a step of
bfloat16 above 1. Ours keeps scores in float32 where its local attention rounds them; measured, by layout: loss
2.3e-4 - 5.7e-4, norm 4.8e-3 - 6.9e-3, gradients 9.3e-3, weights 7.9e-3 (ring: 1.1e-2)."""
OF_BF16_TP = OF_BF16._replace(gradients=1.6e-2, weights=2.5e-2)
"""Partial sums of the ranks are rounded before they are added. Megatron-Core: weights 1.2e-2. Measured: loss 3.5e-4,
norm 4.6e-3, gradients 1.2e-2, weights 1.8e-2."""
OF_BF16_EXPERTS = Limits(20, lm_loss=7.6e-3, grad_norm=2.7e-2)
"""A choice that is nearly a tie falls otherwise once a sum was rounded otherwise. Megatron-Core itself, recorded by two
data-parallel processes, at ep2, ep2 on four and ep2 x pp2: loss 3.8e-3, 2.6e-3, 1.7e-3, norm 1.0e-2, 9.5e-3, 1.3e-2.
The limits are twice the largest of these. Measured at ep2: loss 4.6e-3, norm 1.5e-2."""
OF_FP16 = Limits(30, lm_loss=1.3e-3, grad_norm=1.8e-2)
"""Megatron-Core itself: 1.9e-4 in the loss, 3.4e-3 in the norm. Measured: 9e-4 and 9e-3 on one rank, 3.8e-4 and 6e-3 in
a pipeline, 3.6e-4 and 1.3e-2 in a ring. It is rounding, which this run lets grow (learning rate 3e-3 from the first
step): the first update's norm agrees to 4e-6; recorded with a scale that does not overflow, each gradient of the first
step to 1e-3 of its own norm (norms' weights and biases: 2.6e-3), without bias; and its own softmax in float32 moves
Megatron's norm by 5.4e-3."""
OF_FP16_TP = OF_FP16._replace(lm_loss=1.8e-3, grad_norm=2.2e-2)
"""Megatron-Core itself: 5.5e-4 in the loss, 7.4e-3 in the norm. Measured of ours: 1.3e-3, 1.6e-2."""

FINAL = "weights_final.npz"
REPORTED = {
    "mtp": ("mtp_1_loss",),
    "dsa": ("indexer loss",),
    "deepseek": ("mtp_1_loss", "seq_load_balancing_loss"),
    "mixtral": ("load_balancing_loss",),
    "moe_shared_zloss": ("load_balancing_loss", "z_loss"),
    "moe_capacity": ("load_balancing_loss",),
}
"""Case -> figures beside the loss that its layers report, compared to 5e-5."""
WHOLE = ("gpt2", "llama")
"""The cases whose gradients of the first step and final weights are kept."""

FIRST_STEPS, FIRST_IN_16_BITS = 3, 5
"""Steps of rows that are not replayed to the end: the first gradients, and the losses of two updates; in float16 three
of the five are skipped."""


def script():
    """examples/gpt/compare_with_megatron.py as a module."""
    spec = importlib.util.spec_from_file_location("compare_with_megatron", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(backend, case: str, out: str, flags: list[str]) -> None:
    """Replay a case on this rank with these flags; rank 0 writes curve and arrays into `out`."""
    config = config_of(flags, backend.world_size)
    with job(backend, config):
        script().run_case(Path(case), Path(out), config)


def replay(name: str, layout: str, flags: str, out: Path) -> dict:
    """Replay a case under a layout into `out`; figures of its distance from the recorded run (`compare` of the
    example)."""
    world, layout_flags = LAYOUTS[layout]
    case, tool = golden(name), script()
    flags_of_run = [*tool.case_flags(case), *layout_flags.split(), *flags.split()]
    run(world, train, str(case), str(out), flags_of_run)
    return tool.compare(case, out)


def until(steps: int | None) -> str:
    """The flags that end a replay after so many steps; none of them if steps is None."""
    return f"--exit-interval {steps}" if steps else ""


def check_sixteen_bits(figures: dict, limits: Limits, steps: int | None) -> None:
    """Check a 16-bit replay: the steps that Megatron skips are skipped, with its loss scales, and all figures are
    within `limits`."""
    assert figures["steps"] == (steps or limits.steps)
    assert figures["skipped_equal"] and figures["max_abs_loss_scale"] == 0, figures
    assert figures["max_abs_lm_loss"] < limits.lm_loss, figures
    assert figures["max_rel_grad_norm"] < limits.grad_norm, figures
    assert (figures["max_rel_grad_step1"] or 0.0) <= limits.gradients, figures
    if not steps:
        assert (figures["max_abs_final_weight"] or 0.0) <= limits.weights, figures


def check(name: str, figures: dict, out: Path, steps: int | None) -> None:
    """Check a float32 replay: losses to 1e-5 and norms to 1e-4 relative, gradients to 1e-4 of each parameter's largest
    entry, after all steps weights to 1e-3."""
    assert figures["steps"] == (steps or 20)
    assert figures["max_rel_lm_loss"] < 1e-5, figures
    assert figures["max_rel_grad_norm"] < 1e-4, figures
    reported = [figures[f"max_abs_{figure}"] for figure in REPORTED.get(name, ())]
    assert all(difference < 5e-5 for difference in reported), figures
    if name in (*WHOLE, "mla", "dsa", "gated_delta_net"):
        assert figures["max_rel_grad_step1"] < 1e-4, figures
    if name in WHOLE and not steps:
        assert figures["max_abs_final_weight"] < 1e-3, figures
        check_updates(name, out)
    check_samples(golden(name), out, to_the_end=not steps)


def check_updates(name: str, out: Path) -> None:
    """Check the sum of 20 updates of each parameter against the recorded one, to 2e-3 in the L2 norm: measured 4e-4 for
    biases of keys, else 3e-5."""
    case = golden(name)
    initial, theirs, ours = (np.load(file) for file in (case / "weights.npz", case / FINAL, out / FINAL))
    for key in theirs:
        error = np.linalg.norm(ours[key] - theirs[key]) / np.linalg.norm(theirs[key] - initial[key])
        assert error < 2e-3, (key, error)


def turns(rows: Sequence[tuple], whole: Sequence[tuple], first: int = FIRST_STEPS) -> list:
    """Parameters (case, layout, steps) of a test: steps is None (all) for rows in `whole`, else `first`; with `-m
    exhaustive` all rows also whole."""
    assert set(whole) <= set(rows)
    others = [row for row in rows if row not in whole]
    asked = [pytest.param(*row, None, marks=pytest.mark.exhaustive) for row in others]
    return [(*row, None) for row in whole] + [(*row, first) for row in others] + asked


@pytest.mark.parametrize(("name", "layout", "steps"), turns(ROWS, WHOLE_RUNS))
def test_curve_and_gradients_are_megatrons(name, layout, steps, tmp_path):
    """float32 on the CPU's default kernels and collectives: losses, norms, gradients and weights of every case and
    layout are Megatron-Core's."""
    check(name, replay(name, layout, until(steps), tmp_path), tmp_path, steps)


@pytest.mark.parametrize(("name", "layout", "steps"), turns(SIXTEEN_BITS, WHOLE_RUNS_IN_16_BITS, FIRST_IN_16_BITS))
def test_curve_in_16_bits_is_megatrons(name, layout, steps, tmp_path):
    """bfloat16 and float16 runs are within a small multiple of how far Megatron-Core's own layouts are apart; skipped
    steps and loss scales are exact."""
    whole, cut = (OF_FP16, OF_FP16_TP) if "fp16" in name else (OF_BF16, OF_BF16_TP)
    limits = OF_BF16_EXPERTS if "ep" in layout else cut if layout.startswith("tp") else whole
    check_sixteen_bits(replay(name, layout, until(steps), tmp_path), limits, steps)


@pytest.mark.parametrize(("rows", "whole"), [(ROWS, WHOLE_RUNS), (SIXTEEN_BITS, WHOLE_RUNS_IN_16_BITS)])
def test_every_case_is_replayed_to_its_end(rows, whole):
    """Every case has at least one layout among the whole runs, which replay all its steps."""
    assert {name for name, _ in whole} == {name for name, _ in rows}


FEW_STEPS = 2
"""Steps of the bfloat16 replay on MindSpore's operators, which take seconds for each."""


def test_first_steps_in_bfloat16_of_mindspores_operators(tmp_path):
    """bfloat16 with --kernels ops on a CPU, where operators compute in float32: within the distance of Megatron-Core's
    own layouts from each other."""
    replay("llama_bf16", "1 rank", f"--kernels ops --exit-interval {FEW_STEPS}", tmp_path)
    ours, theirs = (
        json.loads((folder / "curve.json").read_text())[:FEW_STEPS] for folder in (tmp_path, golden("llama_bf16"))
    )
    assert len(ours) == FEW_STEPS
    for column, tolerance in (("lm_loss", 5e-5), ("grad_norm", 1e-3)):
        found, expected = ([row[column] for row in rows] for rows in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=tolerance)


@pytest.mark.parametrize(("name", "layout", "steps"), turns(OTHER_PATHS, OTHER_PATHS[:2]))
def test_mindspores_operators(name, layout, steps, tmp_path):
    """--kernels ops, the operators that an Ascend runs, in float32: the recorded curve; `test_ascend.py` has them with
    HCCL's collectives."""
    check(name, replay(name, layout, f"--kernels ops {until(steps)}", tmp_path), tmp_path, steps)
