"""The thread pool of the host kernels: jobs shared out to helpers that sleep, or that wait awake."""

import os
from threading import Barrier, Thread, get_ident

import pytest

from pynative.kernels.host import threads
from pynative.kernels.host.spinning import AwakeHelper


@pytest.fixture(params=[False, True], ids=["asleep", "awake"])
def three_threads(request):
    before = threads.thread_count()
    threads.set_threads(3)
    if request.param:
        with threads.awake():
            yield
    else:
        yield
    threads.set_threads(before)


def test_jobs_are_done_at_once(three_threads):
    """Three jobs of `together` run at the same time, each on a thread of its own, many times over."""
    for _ in range(50):
        together, seen = Barrier(3, timeout=60), []

        def job(together=together, seen=seen):
            together.wait()
            seen.append(get_ident())

        threads.together([job] * 3)
        assert len(set(seen)) == 3


@pytest.mark.parametrize("wrong", range(3))
def test_an_error_reaches_the_caller(three_threads, wrong):
    """An error in any of three jobs is raised in the caller, and the pool works on afterwards."""
    together = Barrier(3, timeout=60)

    def job(number):
        together.wait()
        if number == wrong:
            raise ValueError(f"job {number}")

    with pytest.raises(ValueError, match=f"job {wrong}"):
        threads.run(job, [(0,), (1,), (2,)])
    done = []
    threads.run(done.append, [(n,) for n in range(20)])
    assert sorted(done) == list(range(20))


def test_another_thread_does_its_work_itself(three_threads):
    """A thread that is not the pool's owner runs all its jobs itself, as helpers wait awake for one thread alone."""
    done = []
    other = Thread(target=threads.run, args=(done.append, [(n,) for n in range(5)]))
    other.start()
    other.join(60)
    assert sorted(done) == list(range(5))


def test_a_job_that_nobody_began_is_the_callers():
    """A job that the helper has not begun when the caller comes to `finish` is run by the caller; the helper takes the
    next one."""
    helper, seen = AwakeHelper(), []
    helper.hand(lambda: seen.append(get_ident()))
    assert helper.finish() is None
    assert seen == [get_ident()]
    server = Thread(target=helper.serve)
    server.start()
    began = Barrier(2, timeout=60)
    helper.hand(began.wait)
    began.wait()
    assert helper.finish() is None
    helper.hand(None)
    server.join(60)
    assert not server.is_alive()


def test_a_forked_child_shares_out_work_of_its_own(three_threads):
    """In a forked child, to which no helper thread survives, work is done and nobody waits for one."""
    child = os.fork()
    if child == 0:
        done = []
        threads.run(done.append, [(n,) for n in range(9)])
        os._exit(sorted(done) != list(range(9)))
    assert os.waitpid(child, 0)[1] == 0
