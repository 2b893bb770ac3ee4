"""Primitives by what they compute: which are taken, and how many are kept."""

import gc
import weakref

import numpy as np
import pytest

from pynative.onednn import arrays, primitives
from pynative.onednn.arrays import layout_of
from pynative.onednn.library import Algorithm, library

pytestmark = pytest.mark.skipif(library() is None, reason="no oneDNN here")


def relu(entries: int):
    layout = layout_of(np.empty((1, entries), np.float32))
    return primitives.eltwise(Algorithm.RELU, 0.0, layout, layout)


def test_a_sequence_that_grows_keeps_no_more_primitives():
    """As generation makes them: new shapes at each step, of which the last used stay."""
    made = [weakref.ref(relu(entries)) for entries in range(1000, 1000 + 2 * primitives.KEPT)]
    gc.collect()
    alive = [primitive() is not None for primitive in made]
    assert sum(alive) <= primitives.KEPT and all(alive[-primitives.KEPT // 2 :])


def test_a_sequence_that_grows_keeps_no_more_layouts():
    """Those used last stay, and what a primitive was made for."""
    held = layout_of(np.empty((1, 7), np.float32))
    made = [weakref.ref(layout_of(np.empty((2, entries), np.float32))) for entries in range(1, 2 * arrays.KEPT)]
    gc.collect()
    assert sum(layout() is not None for layout in made) <= arrays.KEPT and made[-1]() is not None
    assert layout_of(np.empty((1, 7), np.float32)) is held


def test_one_that_is_made_again_computes_the_same():
    """Nothing is left of the one that was let go."""
    x = np.linspace(-1, 1, 900, dtype=np.float32)[None]
    for _ in range(2):
        out = np.empty_like(x)
        relu(900)(x, out)
        np.testing.assert_array_equal(out, np.maximum(x, 0))
        for entries in range(2000, 2000 + primitives.KEPT):
            relu(entries)


def test_what_oneDNN_only_defines_is_not_taken():
    """Its reference implementations: here of a sum of float16, on CPUs without arithmetic of that type."""
    layout = layout_of(np.empty(64, np.float16))
    found = primitives.total(layout, 2)
    assert found is None or not found.implementation.startswith(("ref", "simple:any"))
