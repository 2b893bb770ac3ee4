"""The pool of ranks that multi-rank tests use (tests.support.distributed): results, errors, silence, and no process
left behind."""

import os
import time

import pytest

from tests.support.distributed import RankFailed, pool, run


def rank_and_sum(backend, n):
    import mindspore as ms

    return backend.rank, int(backend.world.all_reduce(ms.Tensor([n + backend.rank], ms.int32)).asnumpy()[0])


def raise_on_rank_one(backend):
    if backend.rank == 1:
        raise KeyError("the reason")
    backend.world.barrier()


def die_on_rank_one(backend):
    if backend.rank == 1:
        os._exit(7)
    backend.world.barrier()


def sleep_on_rank_one(backend):
    if backend.rank == 1:
        time.sleep(60)


def test_results_come_in_order_of_rank():
    """`run` returns the result of every rank, in order of rank."""
    assert run(2, rank_and_sum, 5) == [(0, 11), (1, 11)]


def test_the_processes_are_kept():
    """A second job runs in the processes of the first."""
    run(2, rank_and_sum, 0)
    before = [worker.process.pid for worker in pool(2).workers]
    run(2, rank_and_sum, 0)
    assert before == [worker.process.pid for worker in pool(2).workers]


def test_the_error_of_the_rank_that_failed_is_raised_not_that_of_its_peers():
    """`run` raises the failed rank's own exception with rank and function in its notes; the next job runs."""
    with pytest.raises(KeyError, match="the reason") as caught:
        run(2, raise_on_rank_one)
    notes = "\n".join(caught.value.__notes__)
    assert "on rank 1" in notes and "raise_on_rank_one" in notes and "rank 0 then had" in notes
    assert run(2, rank_and_sum, 5) == [(0, 11), (1, 11)]


def test_a_dead_rank_is_reported_and_the_pool_restarted():
    """A rank that ends is a RankFailed with its exit code; the next job gets a new pool."""
    with pytest.raises(RankFailed) as caught:
        run(2, die_on_rank_one)
    assert "rank 1 ended with exit code 7" in "\n".join(caught.value.__notes__)
    assert run(2, rank_and_sum, 5) == [(0, 11), (1, 11)]


def test_a_silent_rank_is_reported_with_its_stack():
    """A rank that does not answer within the time-out is a RankFailed with its stack; the next job runs."""
    with pytest.raises(RankFailed, match=r"rank\(s\) \[1\] did not answer(.|\n)*sleep_on_rank_one"):
        run(2, sleep_on_rank_one, timeout=4.0)
    assert run(2, rank_and_sum, 5) == [(0, 11), (1, 11)]


def world_size_of_environment(backend):
    return backend.world_size, int(os.environ["RANK_SIZE"]), os.getpid()


def test_a_small_jobs_ranks_are_the_first_of_a_larger_ones():
    """A job of one rank runs in the process of rank 0 of a job of two; after a rank has died, all are started anew."""
    alone, pair, again = (run(size, world_size_of_environment) for size in (1, 2, 1))
    assert [answer[:2] for answer in alone + pair] == [(1, 1), (2, 2), (2, 2)]
    assert alone == again and alone[0][2] == pair[0][2]
    with pytest.raises(RankFailed):
        run(2, die_on_rank_one)
    assert run(1, world_size_of_environment)[0][2] not in {answer[2] for answer in pair}
