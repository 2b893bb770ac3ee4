"""Megatron's getters: under the names that scripts import, for every rank of a job, without starting one."""

import mindspore as ms
import numpy as np
import pytest

from pynative import parallel_state
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job, rank_of_a_job

SIZES = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 4,
    "expert_model_parallel_size": 2,
    "context_parallel_algo": "hybrid_cp_algo",
    "ulysses_degree_in_cp": 2,
}
"""A job of 32 ranks: tp 2, cp 4 (two blocks of two: hybrid), dp 2, pp 2; experts over 2 of the 8 copies of a
tensor-parallel group."""


# Rank 13 of 32 = 1 + 2 x 2 + 8 x 1 + 16 x 0: tensor 1, context 2, data 1, stage 0.
OF_RANK_13 = {
    "tensor_model_parallel": ((12, 13), 1),
    "pipeline_model_parallel": ((13, 29), 0),
    "context_parallel": ((9, 11, 13, 15), 2),
    "data_parallel": ((5, 13), 1),
    "tensor_and_context_parallel": ((8, 9, 10, 11, 12, 13, 14, 15), 5),
    "tensor_and_data_parallel": ((4, 5, 12, 13), 3),
    "expert_model_parallel": ((13, 15), 0),
    "expert_tensor_parallel": ((12, 13), 1),
    "expert_data_parallel": ((1, 5, 9, 13), 3),
    "data_modulo_expert_parallel": ((1, 5, 9, 13), 3),
    "expert_tensor_and_model_parallel": ((12, 13, 14, 15), 1),
    "tensor_and_expert_parallel": ((12, 13, 14, 15), 1),
}


@pytest.mark.parametrize("kind", OF_RANK_13)
def test_group_size_and_rank(kind):
    """get_<kind>_group, _world_size and _rank of rank 13 of 32, for every kind of OF_RANK_13."""
    ranks, place = OF_RANK_13[kind]
    with rank_of_a_job(13, 32, **SIZES):
        assert getattr(parallel_state, f"get_{kind}_group")() == ranks
        assert getattr(parallel_state, f"get_{kind}_world_size")() == len(ranks)
        assert getattr(parallel_state, f"get_{kind}_rank")() == place


def test_variants_and_single_getters():
    """On ranks 13 and 29 of 32: getters with a flag, source ranks, neighbours in the pipeline, hybrid context
    parallelism, embedding groups."""
    with rank_of_a_job(13, 32, **SIZES):
        state = parallel_state
        assert state.get_data_parallel_group(with_context_parallel=True) == (1, 3, 5, 7, 9, 11, 13, 15)
        assert state.get_data_parallel_rank(True) == 6 and state.get_data_parallel_world_size(False) == 2
        assert state.get_tensor_and_data_parallel_world_size(with_context_parallel=True) == 16
        assert state.get_model_parallel_group() == (12, 13, 28, 29)
        assert state.get_model_parallel_group(with_expert_parallel=True) == (12, 13, 14, 15, 28, 29, 30, 31)
        sources = [state.get_tensor_model_parallel_src_rank(), state.get_data_parallel_src_rank()]
        assert [*sources, state.get_data_parallel_src_rank(True), state.get_model_parallel_src_rank()] == [12, 5, 1, 12]
        assert state.get_context_parallel_global_ranks() == (9, 11, 13, 15)
        assert state.is_hybrid_cp()
        assert state.get_context_parallel_group_for_hybrid_ulysses() == (13, 15)
        assert state.get_context_parallel_group_for_hybrid_ring() == (9, 13)
        assert state.get_context_parallel_for_hybrid_ring_rank() == 1
        assert (
            state.get_pipeline_model_parallel_first_rank() == state.get_pipeline_model_parallel_prev_rank() - 16 == 13
        )
        assert state.get_pipeline_model_parallel_last_rank() == state.get_pipeline_model_parallel_next_rank() == 29
        assert state.get_embedding_group() == (13, 29) and state.is_rank_in_embedding_group()
        assert state.get_position_embedding_group() == (13,) and state.is_rank_in_position_embedding_group()
    with rank_of_a_job(29, 32, **SIZES):
        assert parallel_state.is_rank_in_embedding_group()
        assert not parallel_state.is_rank_in_position_embedding_group()
        with pytest.raises(ValueError, match="rank 29 is in no position-embedding group"):
            parallel_state.get_position_embedding_group()


def test_virtual_stages():
    """On the last of two stages with two chunks: is_pipeline_last_stage holds for the last chunk alone, with
    ignore_virtual for both."""
    with rank_of_a_job(1, 2, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2):
        state = parallel_state
        assert state.get_virtual_pipeline_model_parallel_world_size() == 2
        assert not state.is_pipeline_last_stage() and state.is_pipeline_last_stage(ignore_virtual=True)
        state.set_virtual_pipeline_model_parallel_rank(1)
        assert state.get_virtual_pipeline_model_parallel_rank() == 1 and state.is_pipeline_last_stage()
        assert not state.is_pipeline_first_stage(ignore_virtual=True)
        state.set_virtual_pipeline_model_parallel_world_size(None)
        assert state.get_virtual_pipeline_model_parallel_world_size() is None


@pytest.mark.parametrize(("size", "message"), [(2, "needs 2 or more stages"), (0, "must be at least 1")])
def test_virtual_stages_that_cannot_be(size, message):
    """Virtual stages without a pipeline, where nothing runs the second chunk, or 0 of them, are an error; nothing is
    initialised."""
    with pytest.raises(ValueError, match=f"--virtual-pipeline-model-parallel-size {size}: {message}"):
        parallel_state.initialize_model_parallel(virtual_pipeline_model_parallel_size=size)
    assert not parallel_state.model_parallel_is_initialized()


def test_sizes_that_do_not_fit_leave_nothing_behind():
    """An order of the grid that lacks a needed axis is an error, after which the corrected call succeeds."""
    with pytest.raises(ValueError), rank_of_a_job(0, 4, tensor_model_parallel_size=2, order="tp-pp"):
        pass
    assert not parallel_state.model_parallel_is_initialized()
    with rank_of_a_job(0, 4, tensor_model_parallel_size=2):
        assert parallel_state.get_data_parallel_world_size() == 2


def test_sizes_are_checked_before_ranks_meet(monkeypatch):
    """A tensor-parallel size that does not divide the launcher's ranks is an error before any rank waits for others."""
    monkeypatch.setenv("RANK_SIZE", "3")
    monkeypatch.setattr(parallel_state, "connect", lambda: pytest.fail("it met the other ranks"))
    with pytest.raises(ValueError, match="--tensor-model-parallel-size"):
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)


def test_getters_say_what_they_take_and_what_is_missing():
    """A getter before initialisation, an argument that another getter has, a second initialisation and an unavailable
    option are errors."""
    with pytest.raises(RuntimeError, match="not initialised"):
        parallel_state.get_tensor_model_parallel_rank()
    with rank_of_a_job(0, 2):
        with pytest.raises(TypeError, match="takes no argument"):
            parallel_state.get_tensor_model_parallel_rank(with_context_parallel=True)
        with pytest.raises(RuntimeError, match="already initialised"):
            parallel_state.initialize_model_parallel(backend=None)
    with pytest.raises(ValueError, match=r"pipeline_model_parallel_split_rank=1, .*: only None is available"):
        parallel_state.initialize_model_parallel(pipeline_model_parallel_split_rank=1)


def sums(backend, flags: str) -> list[float]:
    """Sums of 2^rank over this rank's tensor, pipeline, data and model-parallel group."""
    kinds = ("tensor_model_parallel", "pipeline_model_parallel", "data_parallel", "model_parallel")
    with job(backend, config_of(f"{TINY} {flags}", backend.world_size)):
        own = ms.Tensor(np.array([2.0**backend.rank], np.float32))
        return [float(getattr(parallel_state, f"get_{kind}_group")().all_reduce(own).asnumpy()[0]) for kind in kinds]


def test_groups_work_together():
    """All-reduces over the groups of 4 ranks, for both orders of the grid: bit r of a sum says that rank r
    took part."""
    flags = "--pipeline-model-parallel-size 2"
    assert run(4, sums, flags) == [[1, 5, 3, 5], [2, 10, 3, 10], [4, 5, 12, 5], [8, 10, 12, 10]]
    flags += " --use-tp-pp-dp-mapping"
    assert run(4, sums, flags) == [[1, 3, 5, 3], [2, 3, 10, 3], [4, 12, 5, 12], [8, 12, 10, 12]]
