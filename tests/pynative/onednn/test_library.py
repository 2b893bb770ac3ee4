"""oneDNN through ctypes: objects that the threads of a process share, and those of one thread."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep

import numpy as np
import pytest

from pynative.dtypes import BFLOAT16
from pynative.kernels.host.engine import ENGINE
from pynative.onednn.library import address_of, library, once

THREADS = 4


def in_threads(action) -> list:
    """Results of `action(thread number)` on THREADS threads that start together."""
    start = Barrier(THREADS)

    def work(thread: int):
        start.wait()
        return action(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def test_what_threads_ask_for_at_once_is_made_a_single_time():
    """`once` makes oneDNN's engine, descriptors and primitives once for all threads: different objects would not fit
    each other."""
    made = []

    @once
    def make(name: str) -> object:
        sleep(0.02)  # all threads come before the first one is done
        made.append(name)
        return object()

    results = in_threads(lambda thread: [make("a"), make("b")])
    assert sorted(made) == ["a", "b"]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
def test_addresses_are_those_that_numpy_says(dtype):
    """`address_of`, which reads an array's header, gives numpy's address, of views too."""
    array = np.zeros((6, 8), dtype)
    for view in (array, array.T, array[2:5, 3:], array[::-1], array.reshape(-1)[7:]):
        assert address_of(view) == view.ctypes.data


@pytest.mark.skipif(library() is None, reason="no oneDNN here")
def test_threads_that_start_on_new_shapes_together_compute_their_own_results():
    """Threads that make new primitives, allocate their scratch memory and execute them at the same time get their own
    results."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def sizes():
        return [(rows, columns) for rows in (33, 34, 35) for columns in (41, 42, 43, 44)]

    def wrong(thread: int) -> list[tuple[int, int]]:
        random = np.random.default_rng(thread)
        found = []
        for rows, columns in sizes():
            x = random.standard_normal((rows, columns), np.float32)
            ones, mean, inverse = np.ones(columns, np.float32), *np.empty((2, rows), np.float32)
            out, product = np.empty_like(x), np.empty((rows, rows), np.float32)
            ENGINE.norm(x, ones, ones, 1e-5, out, mean, inverse)
            ENGINE.matmul(x, x.T, product)
            centred = x - x.mean(1, keepdims=True)
            expected = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5) + 1
            if not (np.allclose(out, expected, atol=1e-4) and np.allclose(product, x @ x.T, atol=1e-3)):
                found.append((rows, columns))
        return found

    try:
        assert in_threads(wrong) == [[]] * THREADS
    finally:
        sys.setswitchinterval(interval)
