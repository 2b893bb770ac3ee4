"""Sub-groups in any order, groups of one, asynchronous handles waited for in any order, the trace, bad arguments."""

import time

import mindspore as ms
import numpy as np
import pytest

from tests.support.collectives import given, numbers, reduced, same
from tests.support.distributed import run


def total(group) -> int:
    """The sum of the members' global ranks, by all_reduce."""
    mine = ms.Tensor([group.ranks[group.rank]], ms.int32)
    return int(group.all_reduce(mine).asnumpy()[0])


def use_groups(backend):
    """Make seven groups of three ranks, each on its members alone, odd ranks in the opposite order of even ones; sums
    within each are right."""
    wanted = [(0, 1), (0, 2), (1, 2), (0, 1, 2), (0,), (1,), (2,)]
    if backend.rank % 2:
        wanted.reverse()
    groups = {ranks: backend.group(ranks, f"group{ranks}") for ranks in wanted if backend.rank in ranks}
    assert backend.group([0, 1, 2]) is groups[0, 1, 2] is backend.world
    for ranks in sorted(groups):
        assert total(groups[ranks]) == sum(ranks)
    for ranks in sorted(groups, reverse=True):
        assert groups[ranks].rank == ranks.index(backend.rank) and groups[ranks].size == len(ranks)
        assert total(groups[ranks]) == sum(ranks)


def test_groups_made_in_different_orders_by_members_only():
    """Overlapping groups made by their members alone, by odd ranks in the opposite order, sum over the right ranks."""
    run(3, use_groups)


def use_groups_of_one(backend):
    x = ms.Tensor(np.arange(6.0, dtype=np.float32))
    alone = backend.group([backend.rank])
    for result in (
        alone.all_reduce(x),
        alone.all_gather(x),
        alone.reduce_scatter(x, op="max"),
        alone.broadcast(x, 0),
        alone.all_to_all(x),
        alone.all_reduce(x, async_op=True).wait(),
    ):
        assert result is x
    alone.barrier()
    out = ms.Tensor(np.zeros(6, np.float32))
    assert alone.all_reduce(x, out=out) is out and out.asnumpy().tolist() == x.asnumpy().tolist()


def test_a_group_of_one_returns_its_input():
    """Collectives of a group of one rank return the input itself, or `out` with its values."""
    run(2, use_groups_of_one)


def wait_in_other_orders(backend, size):
    """Five asynchronous calls, issued in one order by all ranks, are waited for in an order that differs by rank;
    results are right."""
    world = backend.world
    pair = backend.group([0, 1]) if backend.rank < 2 else None
    inputs = [numbers(rank, (size,), "float32") for rank in range(world.size)]
    x = given(backend.rank, (size,), "float32")
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    jobs = [(world.all_reduce(x, async_op=True), reduced(inputs, "sum", "float32"))]
    jobs += [(world.send(x, right, async_op=True), None)]
    if pair:
        jobs += [(pair.all_gather(x, async_op=True), np.concatenate(inputs[:2]))]
    jobs += [(world.recv((size,), ms.float32, left, async_op=True), inputs[left])]
    jobs += [(world.broadcast(x, 1, async_op=True), inputs[1])]
    for place in np.random.default_rng(backend.rank).permutation(len(jobs)):
        work, expected = jobs[place]
        result = work.wait()
        assert work.done()
        if expected is None:
            assert result is None
        else:
            same(result, expected, "float32")


@pytest.mark.parametrize("size", [3, 900_000])
def test_handles_waited_for_in_any_order(size):
    """Asynchronous calls in two groups have right results when each rank waits for them in another order."""
    run(3, wait_in_other_orders, size)


def one_forward_one_backward(backend, micro_batches, size):
    """Activations pass through all stages and gradients back, each stage posting its sends without waiting, with
    several micro-batches under way; contents are right."""
    world = backend.world
    last = world.size - 1
    works = []
    for i in range(micro_batches):
        x = given(0, (size,), "float32", i) if world.rank == 0 else world.recv((size,), ms.float32, world.rank - 1)
        same(x, numbers(0, (size,), "float32", i), "float32")
        if world.rank < last:
            works.append(world.send(x, world.rank + 1, async_op=True))
    for i in range(micro_batches):
        dy = given(7, (size,), "float32", i) if world.rank == last else world.recv((size,), ms.float32, world.rank + 1)
        same(dy, numbers(7, (size,), "float32", i), "float32")
        if world.rank > 0:
            works.append(world.send(dy, world.rank - 1, async_op=True))
    for work in works:
        work.wait()


@pytest.mark.parametrize(("micro_batches", "size"), [(40, 5), (8, 3_000_000)])
def test_posted_sends_never_block(micro_batches, size):
    """Asynchronous sends of many small or few large micro-batches through three stages and back do not block."""
    run(3, one_forward_one_backward, micro_batches, size)


def send_both_ways(backend):
    """Both ranks send far more than a channel holds before either receives: no deadlock."""
    x = given(backend.rank, (20_000_000,), "float32")
    work = backend.world.send(x, 1 - backend.rank, async_op=True)
    backend.world.barrier()
    received = backend.world.recv(x.shape, ms.float32, 1 - backend.rank)
    same(received, numbers(1 - backend.rank, x.shape, "float32"), "float32")
    work.wait()


def test_sends_larger_than_the_channel_in_both_directions():
    """Two ranks that each send 80 MB before either receives do not deadlock, and receive the right values."""
    run(2, send_both_ways)


def cross_a_collective(backend):
    """Rank 0 sends before collectives, rank 1 receives after them, in two groups at the same time: no deadlock."""
    pair = backend.group([0, 1]) if backend.rank < 2 else None
    x = ms.Tensor(np.full(4, 10.0 * backend.rank, np.float32))
    if backend.rank == 0:
        works = [backend.world.send(x + 1, 1, async_op=True), pair.send(x + 2, 1, async_op=True)]
    for group in (backend.world, pair) if backend.rank < 2 else (backend.world,):
        assert group.all_reduce(x).asnumpy().tolist() == [sum(10.0 * rank for rank in group.ranks)] * 4
    if backend.rank == 1:
        assert pair.recv((4,), ms.float32, 0).asnumpy().tolist() == [2.0] * 4
        assert backend.world.recv((4,), ms.float32, 0).asnumpy().tolist() == [1.0] * 4
    if backend.rank == 0:
        for work in works:
            work.wait()


def test_messages_and_collectives_do_not_mix():
    """Messages sent before collectives and received after them, in two groups at once, reach the right receiver."""
    run(3, cross_a_collective)


def count_calls(backend):
    backend.trace.reset()
    group = backend.world
    x = ms.Tensor(np.zeros(1000, np.float32))
    group.all_reduce(x)
    group.all_reduce(x)
    group.all_gather(x, async_op=True).wait()
    group.reduce_scatter(x)
    group.all_to_all(x)
    group.broadcast(x, 0)
    return {operation: (c.calls, c.bytes) for (name, operation), c in backend.trace.counts.items() if name == "world"}


def test_the_trace_counts_calls_and_bytes_sent():
    """Calls and bytes sent in the trace, by operation, on two ranks; of a broadcast only the source sends bytes."""
    first, second = run(2, count_calls)
    expected = {
        "all_reduce": (2, 8000),
        "all_gather": (1, 4000),
        "reduce_scatter": (1, 2000),
        "all_to_all": (1, 2000),
        "broadcast": (1, 4000),
    }
    assert first == expected
    assert second == expected | {"broadcast": (1, 0)}


def ask_wrongly(backend):
    group = backend.world
    x = ms.Tensor(np.zeros((3, 2), np.float32))
    for wrong, message in (
        (lambda: group.all_reduce(x, "mean"), "op='mean'"),
        (lambda: group.all_reduce(x, out=x[0]), "must be alike"),
        (lambda: group.all_reduce(ms.Tensor([1.0], ms.float64)), "float32, float16"),
        (lambda: group.reduce_scatter(x), "does not divide by the 2 ranks"),
        (lambda: group.all_gather(x, 2), "axis=2"),
        (lambda: group.broadcast(x, 2), "not an index"),
        (lambda: group.send(x, group.rank), "is this rank itself"),
        (lambda: group.recv((1,), ms.float32, -1), "not an index"),
        (lambda: group.all_to_all(x, input_splits=[1, 1], output_splits=[1, 1]), "add up to the 3 rows"),
        (lambda: group.all_to_all(x, input_splits=[1, 2]), "give both"),
        (lambda: backend.group([1, 0]), "ascending"),
        (lambda: backend.group([1 - backend.rank]), "not a member"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    assert total(group) == 1, "a refused call must leave no trace"


def test_bad_arguments_are_refused_before_anything_is_sent():
    """Wrong reductions, types, axes, ranks, splits and groups are ValueErrors, after which collectives still work."""
    run(2, ask_wrongly)


def complete_without_waiting(backend, size) -> tuple:
    """(looks until it was finished, result) of a reduce-scatter that `progress` alone completes, never `wait`. The last
    rank issues it after the first look, so it cannot be complete at once."""
    backend.trace.reset()
    backend.trace.keeps_intervals = True
    x, looks, start = given(backend.rank, (size,), "float32"), 0, time.perf_counter()
    told = ms.Tensor([1], ms.int32)
    if backend.rank == 1:
        backend.world.recv(told.shape, told.dtype, 0)
    work = backend.world.reduce_scatter(x, async_op=True)
    while not work.finished:
        backend.progress()
        looks += 1
        if backend.rank == 0 and looks == 1:
            backend.world.send(told, 1)
        time.sleep(0.001)
    stop = time.perf_counter()
    count = backend.trace.of("world", "reduce_scatter")
    ((issued, ended),) = count.intervals
    backend.trace.keeps_intervals = False
    assert start <= issued <= ended <= stop and 0 < count.seconds < stop - start
    return looks, numpy_of(work)


def numpy_of(work) -> np.ndarray:
    return work.wait().asnumpy()


def test_outstanding_work_moves_on_when_a_computing_rank_looks_in():
    """A reduce-scatter of 8 MB completes by calls of `progress` alone, none of which waits."""
    size = 2 << 20
    total = numbers(0, (size,), "float32") + numbers(1, (size,), "float32")
    results = run(2, complete_without_waiting, size)
    np.testing.assert_array_equal(np.concatenate([result for _, result in results]), total)
    assert results[0][0] > 0


def keep_no_intervals(backend):
    backend.trace.reset()
    backend.world.barrier()
    return [count.intervals for count in backend.trace.counts.values()]


def test_intervals_are_kept_on_request_alone():
    """The trace keeps start and end of each call only if asked: the list would grow with every step."""
    assert run(2, keep_no_intervals) == [[None], [None]]
