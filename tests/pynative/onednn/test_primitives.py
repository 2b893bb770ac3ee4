"""The caches of oneDNN's primitives and layouts: which implementations are taken, and how many objects are kept."""

import gc
import weakref
from collections import Counter
from inspect import unwrap

import numpy as np
import pytest

from pynative.onednn import layouts, primitives
from pynative.onednn import library as library_module
from pynative.onednn.layouts import layout_of
from pynative.onednn.library import Algorithm, library

pytestmark = pytest.mark.skipif(library() is None, reason="no oneDNN here")


def relu(entries: int):
    layout = layout_of(np.empty((1, entries), np.float32))
    return primitives.eltwise(Algorithm.RELU, 0.0, layout, layout)


def test_a_sequence_that_grows_keeps_no_more_primitives():
    """At most KEPT of twice as many primitives for new shapes, as a growing text asks for, stay: those used last."""
    made = [weakref.ref(relu(entries)) for entries in range(1000, 1000 + 2 * primitives.KEPT)]
    gc.collect()
    alive = [primitive() is not None for primitive in made]
    assert sum(alive) <= primitives.KEPT and all(alive[-primitives.KEPT // 2 :])


def test_a_sequence_that_grows_keeps_no_more_layouts():
    """At most KEPT of twice as many layouts stay, the last one and one that is held elsewhere among them."""
    held = layout_of(np.empty((1, 7), np.float32))
    made = [weakref.ref(layout_of(np.empty((1009, entries), np.float32))) for entries in range(1, 2 * layouts.KEPT)]
    gc.collect()
    assert sum(layout() is not None for layout in made) <= layouts.KEPT and made[-1]() is not None
    assert layout_of(np.empty((1, 7), np.float32)) is held


def test_one_that_is_made_again_computes_the_same():
    """A primitive that the cache dropped and made again computes right."""
    x = np.linspace(-1, 1, 900, dtype=np.float32)[None]
    for _ in range(2):
        out = np.empty_like(x)
        relu(900)(x, out)
        np.testing.assert_array_equal(out, np.maximum(x, 0))
        for entries in range(2000, 2000 + primitives.KEPT):
            relu(entries)


@pytest.mark.parametrize("kind", ["a product and a function of it", "a gradient"])
def test_nothing_of_the_librarys_is_left_of_one_that_was_let_go(monkeypatch, kind):
    """Every oneDNN handle made for a primitive is destroyed with it: a growing text makes new ones with each token."""
    calls, function = Counter[str](), library_module.function

    def counted(name: str):
        def call(*arguments: object) -> object:
            calls[name] += 1
            return function(name)(*arguments)

        return call

    monkeypatch.setattr(library_module, "function", counted)
    x = np.ones((8, 8), np.float32)
    layouts = [layout_of(x)] * 3
    if kind == "a gradient":
        primitive = unwrap(primitives.eltwise_gradient)(Algorithm.GELU_TANH, 0.0, layouts[0])
    else:
        primitive = unwrap(primitives.product)(*layouts, None, (primitives.Eltwise(Algorithm.RELU),))
    primitive(x, x, np.empty_like(x))
    del primitive
    gc.collect()
    for part in ("primitive", "primitive_attr", "post_ops", "memory"):
        assert calls[f"{part}_create"] == calls[f"{part}_destroy"] > 0, calls
    described = sum(count for name, count in calls.items() if name.endswith("primitive_desc_create"))
    assert described == calls["primitive_desc_destroy"] > 0, calls


def test_what_oneDNN_only_defines_is_not_taken():
    """A primitive that has only a reference implementation in oneDNN, as sums of float16 on some CPUs, is not
    returned."""
    layout = layout_of(np.empty(64, np.float16))
    found = primitives.total(layout, 2)
    assert found is None or not found.implementation.startswith(("ref", "simple:any"))
