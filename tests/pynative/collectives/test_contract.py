"""The contract of a collectives backend: every operation, type, shape and group, against numpy.

One suite for all backends; results are compared bit by bit, on every rank.
"""

import mindspore as ms
import numpy as np
import pytest

from pynative.collectives import Recv, Send
from tests.support.ascend.stack import over_hccl
from tests.support.collectives import TYPES, given, numbers, reduced, same, values
from tests.support.distributed import run

ON_ONE_HOST = [("shared_memory", n) for n in (1, 2, 3, 4)] + [("hccl", 2), ("hccl", 3)]
"""(backend, world size). hccl is the code that an Ascend runs, MindSpore's own checks included, over doubles of HCCL's
primitives."""
WORLDS = [(*world, False) for world in ON_ONE_HOST] + [("shared_memory", 3, True)]
SHAPES = [(0,), (1,), (7,), (2, 3, 4), (), (0, 4), (4, 300, 125)]
BEYOND_THE_ARENA = (3_500_003,)


FULL = [("shared_memory", 3, False), ("hccl", 2, False), ("shared_memory", 3, True)]
"""(backend, world size, on two hosts) in which every type is tested; in the other worlds types take turns."""
TURNS = {world: list(TYPES)[i::3] for i, world in enumerate(world for world in WORLDS if world not in FULL)}
TYPED = [(world, kind) for world in WORLDS for kind in TYPES if kind in TURNS.get(world, TYPES)]
REST = [(world, kind) for world in WORLDS for kind in TYPES if (world, kind) not in TYPED]


def name(world) -> str:
    return f"{world[0]}-{world[1]}" + "-between_hosts" * world[2]


@pytest.fixture(params=WORLDS, ids=name)
def world(request):
    """Run the test for each (backend, world size, whether half of the ranks are on another host)."""
    return request.param


@pytest.fixture(
    params=[*TYPED, *(pytest.param(row, marks=pytest.mark.exhaustive) for row in REST)],
    ids=lambda row: f"{name(row[0])}-{row[1]}",
)
def typed(request):
    """Run the test for each (world, type that its tensors have)."""
    return request.param


def on(world, body, *args):
    """Run `body` on all ranks of a world (backend, size, whether on two hosts); a list of the ranks' results."""
    backend, size, between_hosts = world
    if backend == "hccl":
        return run(size, over_hccl, body, *args)
    return run(size, body, *args, between_hosts=between_hosts)


def check_all_reduce(backend, kind):
    group = backend.world
    for salt, shape in enumerate(SHAPES):
        inputs = [numbers(rank, shape, kind, salt) for rank in range(group.size)]
        for op in ("sum", "max", "min"):
            x = given(group.rank, shape, kind, salt)
            expected = reduced(inputs, op, kind)
            same(group.all_reduce(x, op), expected, kind)
            same(x, inputs[group.rank], kind)
            out = given(9, shape, kind)
            assert group.all_reduce(x, op, out=out) is out
            same(out, expected, kind)
            assert group.all_reduce(x, op, out=x) is x
            same(x, expected, kind)


def test_all_reduce(typed):
    """all_reduce by sum, max and min equals numpy's on every rank, in each shape, also into `out` and in place."""
    on(typed[0], check_all_reduce, typed[1])


def check_all_gather(backend, kind):
    group = backend.world
    for salt, shape in enumerate(SHAPES):
        inputs = [numbers(rank, shape, kind, salt) for rank in range(group.size)]
        for axis in {0, len(shape) - 1, -1} if shape else ():
            gathered = group.all_gather(given(group.rank, shape, kind, salt), axis)
            same(gathered, np.concatenate(inputs, axis), kind)
    check_gathered_in_place(group, kind)


def in_place(group, kind: str, fill: np.ndarray) -> tuple[ms.Tensor, ms.Tensor]:
    """(a buffer of all ranks' parts, this rank's part of it as a view), filled with `fill`."""
    whole = ms.Tensor(fill).astype(TYPES[kind]).asnumpy().copy()
    size = len(whole) // group.size
    return ms.from_numpy(whole), ms.from_numpy(whole[group.rank * size : (group.rank + 1) * size])


def check_gathered_in_place(group, kind):
    """all_gather in place: a rank whose buffer has its own part alone has all ranks' parts afterwards."""
    parts = [numbers(rank, (70_001,), kind) for rank in range(group.size)]
    start = [part if rank == group.rank else np.zeros_like(part) for rank, part in enumerate(parts)]
    whole, mine = in_place(group, kind, np.concatenate(start))
    assert group.all_gather(mine, out=whole) is whole
    same(whole, np.concatenate(parts), kind)
    with pytest.raises(ValueError, match="must be"):
        group.all_gather(mine, out=mine[1:])


def check_scattered_in_place(group, kind):
    """reduce_scatter in place: this rank's part becomes the sum, to the bit all_reduce's; the rest of the buffer is
    unchanged."""
    size = 70_001
    inputs = [numbers(rank, (group.size * size,), kind) for rank in range(group.size)]
    whole, mine = in_place(group, kind, inputs[group.rank])
    expected = values(group.all_reduce(given(group.rank, (group.size * size,), kind)))
    before = values(whole).copy()
    own = slice(group.rank * size, (group.rank + 1) * size)
    assert group.reduce_scatter(whole, out=mine) is mine
    before[own] = expected[own]
    np.testing.assert_array_equal(values(whole), before)
    with pytest.raises(ValueError, match="must be"):
        group.reduce_scatter(whole, out=mine[1:])


def test_all_gather(typed):
    """all_gather along the first and last axis equals numpy's concatenation, also in place in a whole buffer."""
    on(typed[0], check_all_gather, typed[1])


def check_reduce_scatter(backend, kind):
    group = backend.world
    for salt, shape in enumerate(SHAPES):
        for axis in range(len(shape)):
            whole = tuple(n * group.size if i == axis else n for i, n in enumerate(shape))
            inputs = [numbers(rank, whole, kind, salt) for rank in range(group.size)]
            for op in ("sum", "max", "min"):
                mine = group.reduce_scatter(given(group.rank, whole, kind, salt), axis, op)
                expected = np.split(reduced(inputs, op, kind), group.size, axis)[group.rank]
                same(mine, expected, kind)
    check_scattered_in_place(group, kind)


def test_reduce_scatter(typed):
    """reduce_scatter by sum, max and min along each axis gives each rank its part, also in place in a buffer."""
    on(typed[0], check_reduce_scatter, typed[1])


def check_broadcast(backend, kind):
    group = backend.world
    for salt, shape in enumerate(SHAPES):
        for source in range(group.size):
            result = group.broadcast(given(group.rank, shape, kind, salt), source)
            same(result, numbers(source, shape, kind, salt), kind)


def test_broadcast(typed):
    """broadcast gives every rank the tensor of the source, for each shape and each rank as source."""
    on(typed[0], check_broadcast, typed[1])


def check_all_to_all(backend, kind):
    group = backend.world
    for salt, shape in enumerate([(0,), (1,), (3, 2), (40, 333), (2, 0)]):
        whole = (shape[0] * group.size, *shape[1:])
        result = group.all_to_all(given(group.rank, whole, kind, salt))
        parts = [np.split(numbers(rank, whole, kind, salt), group.size)[group.rank] for rank in range(group.size)]
        same(result, np.concatenate(parts), kind)


def test_all_to_all_even(typed):
    """all_to_all without splits sends equal parts of rows, and joins those received in order of rank."""
    on(typed[0], check_all_to_all, typed[1])


def check_all_to_all_uneven(backend, kind):
    group = backend.world
    for salt, width in enumerate([(), (1,), (5, 3), (0,), (20_000,)]):
        rows = np.random.default_rng(salt).integers(0, 9, (group.size, group.size))
        inputs = [numbers(rank, (rows[rank].sum(), *width), kind, salt) for rank in range(group.size)]
        result = group.all_to_all(
            given(group.rank, inputs[group.rank].shape, kind, salt),
            input_splits=rows[group.rank].tolist(),
            output_splits=rows[:, group.rank].tolist(),
        )
        parts = [np.split(x, np.cumsum(rows[rank])[:-1])[group.rank] for rank, x in enumerate(inputs)]
        same(result, np.concatenate(parts), kind)


def test_all_to_all_uneven(typed):
    """all_to_all by drawn splits, some of them 0 rows, joins the received rows in order of rank."""
    on(typed[0], check_all_to_all_uneven, typed[1])


def check_messages(backend, kind):
    """Every rank sends to every other before it receives, asynchronously; then all sends and receives as one batch."""
    group = backend.world
    others = [i for i in range(group.size) if i != group.rank]
    for salt, shape in enumerate(SHAPES):
        sends = [group.send(given(group.rank, shape, kind, salt), to, async_op=True) for to in others]
        for source in others:
            same(group.recv(shape, TYPES[kind], source), numbers(source, shape, kind, salt), kind)
        assert all(work.wait() is None for work in sends)
        batch = [Recv(shape, TYPES[kind], source) for source in others]
        batch += [Send(given(group.rank, shape, kind, salt), to) for to in others]
        works = group.batch_send_recv(batch)
        for work, source in zip(works, others, strict=False):
            same(work.wait(), numbers(source, shape, kind, salt), kind)


def test_messages(typed):
    """Messages between all pairs of ranks arrive whole, sent asynchronously first and then as one batch."""
    on(typed[0], check_messages, typed[1])


def check_big(backend):
    """Every collective on arrays larger than the slots of the shared-memory arena, and several such messages
    at once."""
    group = backend.world
    shape = BEYOND_THE_ARENA
    inputs = [numbers(rank, shape, "float32") for rank in range(group.size)]
    x = given(group.rank, shape, "float32")
    expected = reduced(inputs, "sum", "float32")
    same(group.all_reduce(x), expected, "float32")
    same(group.broadcast(x, group.size - 1), inputs[-1], "float32")
    same(group.all_gather(x), np.concatenate(inputs), "float32")
    even = shape[0] // group.size * group.size
    parts = np.split(expected[:even], group.size)
    same(group.reduce_scatter(x[:even]), parts[group.rank], "float32")
    mine = [np.split(each[:even], group.size)[group.rank] for each in inputs]
    same(group.all_to_all(x[:even]), np.concatenate(mine), "float32")
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.size > 1:
        sends = [group.send(x, after, async_op=True) for _ in range(4)]
        for _ in sends:
            same(group.recv(shape, ms.float32, before), inputs[before], "float32")
        for work in sends:
            work.wait()
    group.all_reduce(x, out=x)
    same(x, expected, "float32")


def test_tensors_larger_than_the_memory_they_pass_through(world):
    """Collectives and four posted sends of tensors larger than the shared-memory slots give right values."""
    on(world, check_big)


def check_not_contiguous(backend):
    group = backend.world
    inputs = [numbers(rank, (6, 8), "float32") for rank in range(group.size)]
    x = given(group.rank, (6, 8), "float32")
    for view, cut in ((x.transpose(1, 0), lambda a: a.T), (x[:, 2:5], lambda a: a[:, 2:5]), (x[1], lambda a: a[1])):
        same(group.all_reduce(view), reduced([cut(a) for a in inputs], "sum", "float32"), "float32")
        same(group.all_gather(view), np.concatenate([cut(a) for a in inputs]), "float32")
        same(group.broadcast(view, 0), cut(inputs[0]), "float32")
    with pytest.raises(ValueError, match="view of another tensor"):
        group.all_reduce(x.transpose(1, 0), out=x.transpose(1, 0))


def test_inputs_that_are_not_contiguous(world):
    """Transposed and sliced inputs are computed right; a transposed view as `out` is refused."""
    on(world, check_not_contiguous)


def check_written_through(backend):
    """`out` over a slice of a numpy buffer changes the buffer, as gradient buckets need it."""
    buffer = np.full(10, backend.rank + 1, np.float32)
    bucket = ms.from_numpy(buffer[2:6])
    backend.world.all_reduce(bucket, out=bucket)
    total = sum(range(1, backend.world_size + 1))
    assert buffer.tolist() == [backend.rank + 1] * 2 + [total] * 4 + [backend.rank + 1] * 4


def test_in_place_reaches_the_buffer_below(world):
    """all_reduce into a view of a numpy buffer writes the sum into that part of the buffer and nowhere else."""
    on(world, check_written_through)


def check_equal_bits(backend, kind):
    """Results of sums that depend on the order of addition, as bytes, to be compared between ranks."""
    scale = 10.0 ** np.random.default_rng(backend.rank).integers(-3, 4, 30_001)
    x = numbers(backend.rank, (30_001,), "float32") * scale.astype(np.float32)
    return values(backend.world.all_reduce(ms.Tensor(x).astype(TYPES[kind]))).tobytes()


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_all_ranks_get_the_same_bits(world, kind):
    """all_reduce of numbers whose sum depends on the order of addition gives all ranks the same bits."""
    assert len(set(on(world, check_equal_bits, kind))) == 1


def check_group_order(backend):
    inputs = [np.random.default_rng(rank).standard_normal(70_001).astype(np.float32) for rank in range(3)]
    for size in (100, 70_001):
        result = backend.world.all_reduce(ms.Tensor(inputs[backend.rank][:size])).asnumpy()
        assert result.tobytes() == ((inputs[0] + inputs[1]) + inputs[2])[:size].tobytes()


def test_shared_memory_adds_in_group_order():
    """all_reduce over shared memory adds in order of rank, (0 + 1) + 2, for small and for large tensors."""
    run(3, check_group_order)


def check_special_values(backend, kind):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-30], np.float32)
    with np.errstate(over="ignore"):
        x = ms.Tensor(special).astype(TYPES[kind])
        result = values(backend.world.all_reduce(x, "max"))
    np.testing.assert_array_equal(result, values(x))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_infinity_and_nan_survive(world, kind):
    """all_reduce by max of the same values on all ranks returns NaN, infinities, very large and small numbers."""
    on(world, check_special_values, kind)
