"""Muon on several ranks: matrices that tensor parallelism and the distributed optimizer cut."""

import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.config.update_rules.muon import MuonConfig
from parallel_core.sharding import Cut, ShardSpec
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.kernels import normal
from tests.support.layouts import check_layout

MODEL = (
    f"{TINY} --global-batch-size 4 --group-query-attention --num-query-groups 2 --swiglu --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --optimizer muon "
    "--muon-nesterov --muon-fp32-matmul-prec high --decoupled-lr 2e-3"
)
TP2, SHARDED = "--tensor-model-parallel-size 2", "--use-distributed-optimizer"


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, TP2),
        (2, f"{TP2} --muon-tp-mode distributed"),
        (2, "--zero-stage 2"),
        (2, "--zero-stage 3 --overlap-grad-reduce"),
        (4, f"{TP2} {SHARDED}"),
    ],
)
def test_a_layout_trains_as_one_process(world, layout):
    """Losses, updates and every state, also where the distributed optimizer's or ZeRO's slices cut a matrix in two."""
    check_layout(MODEL, world, layout)


def updates_of_modes(backend, axis: int, rows: tuple[int, ...]) -> list[np.ndarray]:
    """This rank's [update in mode duplicated, distributed, blockwise, update of the whole matrix, update of this rank's
    block alone]."""
    from pynative.optimizer.muon import scaled_update

    whole = normal(12, 20, seed=3)
    spec = ShardSpec(name="w", shape=whole.shape, cuts=(Cut(axis),), interleaved_rows=rows)
    options = {"muon_scale_mode": "unit_rms_norm", "muon_fp32_matmul_prec": "high"}
    with job(backend, config_of(f"{TINY} {TP2}", 2)):
        block = np.ascontiguousarray(np.split(whole, 2, axis)[backend.rank])
        found = [
            scaled_update(Tensor(block), spec, MuonConfig(muon_tp_mode=mode, **options)).asnumpy().copy()
            for mode in ("duplicated", "distributed", "blockwise")
        ]
        for alone in (whole, block):
            uncut = ShardSpec(name="w", shape=alone.shape, interleaved_rows=rows)
            found.append(scaled_update(Tensor(alone), uncut, MuonConfig(**options)).asnumpy().copy())
        return found


@pytest.mark.parametrize(("axis", "rows"), [(0, ()), (1, ()), (0, (3, 2, 1)), (1, (3, 2, 1))])
def test_modes_of_tensor_parallelism(axis, rows):
    """Modes duplicated and distributed give this rank's part of the whole matrix's update, blockwise the update of its
    block alone."""
    for rank, (duplicated, distributed, blockwise, whole, block) in enumerate(run(2, updates_of_modes, axis, rows)):
        own = np.split(whole, 2, axis)[rank]
        np.testing.assert_allclose(duplicated, own, atol=1e-5)
        np.testing.assert_allclose(distributed, own, atol=2e-4)
        np.testing.assert_array_equal(blockwise, block)
        assert np.abs(block - own).max() > 0.05


def parts_of_fused(backend) -> tuple[np.ndarray, list[np.ndarray]]:
    """(update of a fused matrix of q, k and v rows, [update of q, of k, of v as matrices of their own])."""
    from pynative.optimizer.muon import scaled_update

    x, config = normal(12, 5, seed=4), MuonConfig(muon_fp32_matmul_prec="high")
    with job(backend, config_of(TINY, 1)):
        fused = scaled_update(Tensor(x), ShardSpec(shape=x.shape, interleaved_rows=(3, 2, 1)), config).asnumpy()
        groups = np.split(x.reshape(2, 6, 5), (3, 5), axis=1)
        matrices = [np.ascontiguousarray(part.reshape(-1, 5)) for part in groups]
        return fused, [scaled_update(Tensor(m), ShardSpec(shape=m.shape), config).asnumpy() for m in matrices]


def test_queries_keys_and_values_are_three_matrices():
    """Muon orthogonalizes q, k and v of a fused matrix apart: two groups of three rows of q, two of k, one of v."""
    fused, parts = run(1, parts_of_fused)[0]
    merged = np.concatenate([part.reshape(2, -1, 5) for part in parts], axis=1).reshape(12, 5)
    np.testing.assert_array_equal(fused, merged)
