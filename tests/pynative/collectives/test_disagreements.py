"""Ranks that disagree: an error on every rank that names both call sites, never a silent result, never a hang."""

import mindspore as ms
import numpy as np
import pytest

from pynative.collectives import CollectiveError, CollectiveMismatch, connect
from tests.support.distributed import run
from tests.support.two_hosts import job_address

SECONDS = 20.0


def x(shape=(4,), kind=np.float32):
    return ms.Tensor(np.ones(shape, kind))


PROGRAMS = {
    "shape": (lambda g: g.all_reduce(x((4,))), lambda g: g.all_reduce(x((2,)))),
    "shape of equal size": (lambda g: g.all_reduce(x((2, 3))), lambda g: g.all_reduce(x((3, 2)))),
    "type": (lambda g: g.all_reduce(x(kind=np.float32)), lambda g: g.all_reduce(x(kind=np.int32))),
    "reduction": (lambda g: g.all_reduce(x(), "sum"), lambda g: g.all_reduce(x(), "max")),
    "operation": (lambda g: g.all_reduce(x()), lambda g: g.all_gather(x())),
    "source": (lambda g: g.broadcast(x(), 0), lambda g: g.broadcast(x(), 1)),
    "axis": (lambda g: g.all_gather(x((2, 2)), 0), lambda g: g.all_gather(x((2, 2)), 1)),
    "order": (lambda g: (g.all_reduce(x()), g.broadcast(x(), 0)), lambda g: (g.broadcast(x(), 0), g.all_reduce(x()))),
    "one call more": (lambda g: (g.all_reduce(x()), g.barrier()), lambda g: g.barrier()),
    "rows": (
        lambda g: g.all_to_all(x((5, 2)), input_splits=[2, 3], output_splits=[2, 1]),
        lambda g: g.all_to_all(x((5, 2)), input_splits=[2, 3], output_splits=[3, 3]),
    ),
    "message shape": (lambda g: g.send(x((4,)), 1), lambda g: g.recv((2,), ms.float32, 0)),
    "message type": (lambda g: g.send(x(), 1), lambda g: g.recv((4,), ms.float16, 0)),
    "message never received": (lambda g: g.send(x(), 1), lambda g: None),
    "work never waited for": (lambda g: g.recv((4,), ms.float32, 1, async_op=True), lambda g: None),
    "send against all_reduce": (lambda g: g.all_reduce(x()), lambda g: (g.send(x(), 0), g.recv((4,), ms.float32, 0))),
    "both receive": (lambda g: g.recv((4,), ms.float32, 1), lambda g: g.recv((4,), ms.float32, 0)),
    "one leaves early": (lambda g: g.all_reduce(x()), lambda g: None),
}
SEEN_BY_THE_LEDGER = [name for name in PROGRAMS if name not in ("both receive", "send against all_reduce")]
"""Programs whose disagreement is found at once between hosts, too; in the two others all wait for each other until the
time-out."""


def disagree(backend, name, address):
    """The CollectiveMismatch that this rank gets from PROGRAMS[name], which differs by rank ("no error" if none); a
    further call must raise it as well."""
    own = connect(address=job_address(address), timeout_minutes=SECONDS / 60)
    try:
        PROGRAMS[name][own.rank](own.world)
        own.close()
    except CollectiveMismatch as error:
        with pytest.raises(CollectiveMismatch):
            own.world.all_reduce(x())
        own.close()
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("name", "between_hosts"), [(name, False) for name in PROGRAMS] + [(name, True) for name in SEEN_BY_THE_LEDGER]
)
def test_all_ranks_learn_of_a_disagreement(name, between_hosts):
    """Each of PROGRAMS, on one host or between two, gives both ranks a CollectiveMismatch that names a call site."""
    messages = run(2, disagree, name, f"disagree-{name}", between_hosts=between_hosts)
    for message in messages:
        assert message.count("test_disagreements.py:") >= 1 and "rank 0" in message, message
    if name in ("shape", "type", "reduction", "operation", "message shape"):
        assert messages[0] == messages[1] and messages[0].count("test_disagreements.py:") == 2


def cross_groups(backend, address):
    """Rank 1 uses two groups in the opposite order: no call differs, yet no rank could go on. The text of this rank's
    CollectiveMismatch."""
    own = connect(address=address, timeout_minutes=SECONDS / 60)
    wide, narrow = own.world, own.group([0, 1]) if own.rank < 2 else None
    with pytest.raises(CollectiveMismatch, match="wait for each other") as caught:
        for group in (wide, narrow) if own.rank != 1 else (narrow, wide):
            if group:
                group.all_reduce(x())
        own.close()
    own.close()
    return str(caught.value)


def test_groups_used_in_opposite_orders_are_reported_as_a_deadlock():
    """Two groups used in the opposite order by one rank: a CollectiveMismatch on all three names two call sites."""
    for message in run(3, cross_groups, "crossed"):
        assert message.count("test_disagreements.py:") >= 2


def third_rank_learns(backend, address):
    """Ranks 0 and 1 disagree within their own group while rank 2 waits for them in the world's: all three get the same
    CollectiveMismatch."""
    own = connect(address=address, timeout_minutes=SECONDS / 60)
    with pytest.raises(CollectiveMismatch, match=r"rank 0 calls all_reduce.* rank 1 calls barrier"):
        if own.rank < 2:
            pair = own.group([0, 1])
            pair.all_reduce(x()) if own.rank == 0 else pair.barrier()
        own.world.barrier()
    own.close()


def test_ranks_outside_the_group_learn_too():
    """A rank that waits in the world's group gets the CollectiveMismatch of two ranks within their own group."""
    run(3, third_rank_learns, "third")


def random_step(generator):
    """One call that all ranks can make, with its arguments, as data."""
    shape = tuple(int(n) * 6 for n in generator.integers(1, 4, generator.integers(1, 3)))
    kind = str(generator.choice(["float32", "int32", "float16"]))
    operation = str(generator.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "ring"]))
    return {"operation": operation, "shape": shape, "kind": kind, "source": int(generator.integers(0, 2))}


def mutate(generator, program):
    """The program with one call dropped, doubled, swapped with its neighbour, or made with another argument,
    as drawn."""
    program = [dict(step) for step in program]
    place = int(generator.integers(0, len(program)))
    how = generator.choice(["drop", "double", "swap", "shape", "kind", "operation"])
    step = program[place]
    if how == "drop":
        del program[place]
    elif how == "double":
        program.insert(place, dict(step))
    elif how == "swap":
        other = (place + 1) % len(program)
        program[place], program[other] = program[other], program[place]
    elif how == "shape":
        step["shape"] = (*step["shape"][:-1], step["shape"][-1] + 6)
    elif how == "kind":
        step["kind"] = "int64" if step["kind"] != "int64" else "float32"
    else:
        step["operation"] = "all_reduce" if step["operation"] != "all_reduce" else "broadcast"
    return program


def execute(backend, step):
    """Make one call (`random_step`) and check its result, all inputs being ones."""
    group = backend.world
    operation, shape = step["operation"], step["shape"]
    tensor = ms.Tensor(np.ones(shape, step["kind"]))
    if operation == "ring":
        work = group.send(tensor, (group.rank + 1) % group.size, async_op=True)
        result = group.recv(shape, tensor.dtype, (group.rank - 1) % group.size)
        work.wait()
    elif operation == "broadcast":
        result = group.broadcast(tensor, step["source"])
    else:
        result = getattr(group, operation)(tensor)
    expected = group.size if operation in ("all_reduce", "reduce_scatter") else 1
    assert (result.asnumpy() == expected).all()


def fuzz(backend, seed, addresses):
    """For each address: run one random program, mutated on one rank. A list of this rank's error texts, None where none
    came."""
    seen = []
    for number, address in enumerate(addresses):
        generator = np.random.default_rng([seed, number])
        program = [random_step(generator) for _ in range(int(generator.integers(2, 7)))]
        odd_one, mutated = int(generator.integers(0, backend.world_size)), mutate(generator, program)
        own = connect(address=address, timeout_minutes=SECONDS / 60)
        try:
            for step in mutated if own.rank == odd_one else program:
                execute(own, step)
            own.close()
            seen.append(None if mutated != program else "the same program")
        except CollectiveError as error:
            seen.append(f"{type(error).__name__}: {error}")
            own.close()
    return seen


@pytest.mark.parametrize(("world_size", "count"), [(2, 60), (3, 40)])
def test_a_hundred_random_disagreements_leave_no_silent_result(world_size, count):
    """Drawn programs of collectives, mutated on one rank, end in CollectiveMismatch on every rank."""
    addresses = [f"fuzz-{world_size}-{number}" for number in range(count)]
    by_rank = run(world_size, fuzz, world_size, addresses)
    for number, seen in enumerate(zip(*by_rank, strict=True)):
        for rank, text in enumerate(seen):
            assert text is not None, f"case {number}: rank {rank} saw nothing"
            assert text == "the same program" or text.startswith("CollectiveMismatch"), f"case {number}: {text}"
    assert sum(seen[0] != "the same program" for seen in zip(*by_rank, strict=True)) > 0.8 * count
