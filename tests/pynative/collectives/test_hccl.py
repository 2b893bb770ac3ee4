"""The HCCL backend on doubles: its calls can complete on streams that keep their order, and wrong calls are refused."""

import time
from unittest.mock import patch

import mindspore as ms
import numpy as np
import pytest
from mindspore.mint import distributed

from pynative import parallel_state
from pynative.collectives import Recv, Send, hccl
from pynative.collectives.hccl import HcclBackend
from tests.support.ascend.hccl import communication
from tests.support.ascend.stack import ascend_operators, over_hccl
from tests.support.ascend.streams import Posted, check_order
from tests.support.distributed import run


def one(kind: str, peer: int) -> Posted:
    """A send or receive with this peer, posted alone in the group of ranks 0 and 1."""
    return Posted((0, 1), ((kind, peer),))


def test_both_send_first_is_found():
    """`check_order` finds that two ranks that both post a send before their receive never end; as one batch, or receive
    first on one side, they do."""
    with pytest.raises(AssertionError, match=r"group \(0, 1\): nothing moves"):
        check_order([[one("send", 1), one("recv", 1)], [one("send", 0), one("recv", 0)]])
    check_order([[Posted((0, 1), (("send", 1), ("recv", 1)))], [Posted((0, 1), (("recv", 0), ("send", 0)))]])
    check_order([[one("send", 1), one("recv", 1)], [one("recv", 0), one("send", 0)]])


def test_other_orders_that_never_end_are_found():
    """`check_order` finds a collective before a message that the other rank posts first, a collective that a rank
    leaves out or replaces, and a send without a receive."""
    both = Posted((0, 1), (("all_reduce", -1),))
    for posted in (
        [[both, one("send", 1)], [one("recv", 0), both]],
        [[both], []],
        [[both], [Posted((0, 1), (("barrier", -1),))]],
        [[one("send", 1)], []],
    ):
        with pytest.raises(AssertionError, match="nothing moves"):
            check_order(posted)
    check_order([[both, one("send", 1)], [both, one("recv", 0)]])


def ring(carrier) -> list[Posted]:
    """Send to the next rank and receive from the previous in one batch; the calls posted to HCCL."""
    with ascend_operators(), communication(carrier) as posted:
        backend = HcclBackend(timeout_minutes=1.0)
        group, size = backend.world, backend.world_size
        after, before = (group.rank + 1) % size, (group.rank - 1) % size
        x = ms.Tensor(np.full(4, group.rank, np.float32))
        sent, received = group.batch_send_recv([Send(x, after), Recv((4,), ms.float32, before)])
        assert sent.wait() is None and received.wait().asnumpy().tolist() == [before] * 4
        assert backend.trace.of("world", "send").bytes == 16 and backend.trace.of("world", "recv").calls == 1
        backend.close()
    return posted


@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_posts_one_batch(size):
    """A send to the next and a receive from the previous rank post one HCCL batch of two messages, in a valid order."""
    posted = run(size, ring)
    check_order(posted)
    assert [len(each) for each in posted] == [1] * size and len(posted[0][0].messages) == 2


def read_too_early(backend) -> list[float]:
    """The content of an all-reduce's result before `wait`, and after."""
    work = backend.world.all_reduce(ms.Tensor(np.ones(2, np.float32)), async_op=True)
    before = work._result.asnumpy().copy()
    return [*before.tolist(), *work.wait().asnumpy().tolist()]


def test_a_result_is_not_there_before_it_is_waited_for():
    """The double of HCCL fills a result with NaN until `wait`: a missing wait in our code would otherwise go unseen."""
    for values in run(2, over_hccl, read_too_early):
        assert np.isnan(values[:2]).all() and values[2:] == [2.0, 2.0]


def seconds_of_a_slow_launch(backend) -> float:
    """The seconds that the trace has of an all-reduce whose launch takes 50 ms."""
    real = hccl.distributed.all_reduce

    def slow(*arguments):
        time.sleep(0.05)
        return real(*arguments)

    with patch.object(hccl.distributed, "all_reduce", slow):
        backend.world.all_reduce(ms.Tensor(np.ones(2, np.float32)))
    return backend.trace.of("world", "all_reduce").seconds


def test_the_trace_has_the_time_of_a_launch():
    """The host's time for launching an operation is in the trace's seconds of it."""
    assert min(run(2, over_hccl, seconds_of_a_slow_launch)) >= 0.05


def groups_at_start(backend) -> tuple[list[str], list[str]]:
    """Names of HCCL's groups (when the rank grid is laid, when each kind of group has been used)."""
    parallel_state.initialize_model_parallel(1, 2, backend=backend)
    try:
        at_start = sorted(backend._groups)
        for kind in parallel_state.get_coordinates():
            parallel_state.get_group(kind)
        return at_start, sorted(backend._groups)
    finally:
        parallel_state.destroy_model_parallel()


def test_all_groups_are_made_at_start_in_one_order():
    """No HCCL group is made later than the rank grid, as members must make one together: two stages that make theirs at
    first use would wait for each other."""
    found = run(4, over_hccl, groups_at_start)
    assert all(at_start == used and len(used) > 2 for at_start, used in found)


def test_a_groups_name_is_short_however_many_ranks_it_has(monkeypatch):
    """The name of an HCCL group has at most 127 characters, HCCL's limit."""
    monkeypatch.setattr(hccl, "create_group", lambda name, ranks: None)
    names = {hccl._native_name(tuple(range(start, 10_000, 2)), 10_000) for start in (0, 1)}
    assert len(names) == 2 and max(map(len, names)) < 128


def tensor(*shape: int, dtype=ms.float32) -> ms.Tensor:
    return ms.Tensor(np.ones(shape), dtype)


WRONG = {
    "no such group": lambda: distributed.all_reduce(tensor(2), "sum", "ranks-0-1-2"),
    "no such reduction": lambda: distributed.all_reduce(tensor(2), "mean"),
    "sum of bools": lambda: distributed.all_reduce(tensor(2, dtype=ms.bool_)),
    "a type that HCCL has no number for": lambda: distributed.all_reduce(tensor(2, dtype=ms.complex64)),
    "not contiguous": lambda: distributed.all_reduce(tensor(2, 3).transpose(1, 0)),
    "an array": lambda: distributed.all_reduce(np.ones(2)),
    "async_op is a number": lambda: distributed.all_reduce(tensor(2), "sum", None, 1),
    "gather: output too small": lambda: distributed.all_gather_into_tensor(tensor(3), tensor(2)),
    "gather: output and input swapped": lambda: distributed.all_gather_into_tensor(tensor(2), tensor(4)),
    "gather: types differ": lambda: distributed.all_gather_into_tensor(tensor(4, dtype=ms.float16), tensor(2)),
    "scatter: does not divide": lambda: distributed.reduce_scatter_tensor(tensor(2), tensor(3)),
    "broadcast: source is a name": lambda: distributed.broadcast(tensor(2), "0"),
    "all to all: counts exceed the input": lambda: distributed.all_to_all_single(tensor(4), tensor(4), [2, 2], [3, 3]),
    "all to all: one count": lambda: distributed.all_to_all_single(tensor(4), tensor(4), [4], [4]),
    "send to itself": lambda: distributed.isend(tensor(2), distributed.get_rank()),
    "send: a peer outside": lambda: distributed.isend(tensor(2), 7),
    "batch: nothing": lambda: distributed.batch_isend_irecv([]),
    "batch: another operation": lambda: distributed.P2POp("send", tensor(2), 0),
    "initialised by another name": lambda: distributed.init_process_group("nccl"),
}


def refused(backend, name: str) -> str | None:
    """The type's name of the error that the call WRONG[name] raises; None if it raises none."""
    try:
        WRONG[name]()
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused(name):
    """Each of WRONG, calls of MindSpore's communication with wrong arguments, raises an error on both ranks."""
    assert None not in run(2, over_hccl, refused, name)
