"""Attention over a cut sequence is attention over the whole one: output and every gradient."""

import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_core.attention.score_form import PLAIN, ScoreForm, alibi_slopes
from parallel_core.batch.micro_batches import DOCUMENT_STARTS
from parallel_core.context import HYBRID, RING, ULYSSES, ContextLayout, as_array
from pynative.kernels.block import AttentionRule
from tests.support.distributed import run
from tests.support.documents import drawn_starts
from tests.support.kernels import assert_close, normal, run_operator, upstream

LAYOUTS = {
    "cp2 ring": (2, RING, None),
    "cp4 ring": (4, RING, None),
    "cp2 ulysses": (2, ULYSSES, None),
    "cp4 ulysses": (4, ULYSSES, None),
    "cp4 hybrid": (4, HYBRID, 2),
}
SHAPES = {
    "one head a group": (4, 4),
    "two heads a group": (8, 4),
    "fewer groups than ranks": (8, 2),
    "one group": (4, 1),
    "groups that no degree divides": (12, 3),
}
"""Name -> (n, g): heads of queries, and groups, that is heads of keys and values."""


def heads(length: int, batch: int, n: int, g: int, d: int, e: int) -> list[np.ndarray]:
    """Drawn [q, k, v]: queries [s, b, n, d], keys [s, b, g, d], values [s, b, g, e]."""
    return [normal(length, batch, *shape, seed=seed) for seed, shape in enumerate(((n, d), (g, d), (g, e)))]


def document_mask(length: int, batch: int) -> np.ndarray:
    """A mask [b, 1, s, s], true where hidden: causal within documents, as --reset-attention-mask makes it, and one row
    that sees nothing."""
    starts = np.random.default_rng(5).random((batch, length)) < 0.2
    document = np.cumsum(starts, axis=1)
    mask = ~np.tri(length, dtype=bool) | (document[:, :, None] != document[:, None, :])
    mask[0, length // 2] = True
    return mask[:, None]


def cut_attention(backend, layout, arrays, options, implementation="host"):
    """This rank's piece of (attention's output, gradients of q, k and v), computed on a sequence that is cut by the
    layout (cp, algorithm, Ulysses degree)."""
    from mindspore import from_numpy

    from pynative import kernels, parallel_state
    from pynative.context_parallel.batch import context_shard
    from pynative.context_parallel.ulysses import context_parallel_attention

    kernels.use(implementation, 2)
    size, algorithm, degree = layout
    parallel_state.initialize_model_parallel(
        context_parallel_size=size, context_parallel_algo=algorithm, ulysses_degree_in_cp=degree, backend=backend
    )
    try:
        groups = (
            parallel_state.get_context_parallel_group_for_hybrid_ulysses(),
            parallel_state.get_context_parallel_group_for_hybrid_ring(),
        )
        options = dict(options)
        if options.get("mask") is not None:
            options["mask"] = from_numpy(np.ascontiguousarray(context_shard().queries(options["mask"])))
        if options.get("first_keys") is not None:
            options["first_keys"] = context_shard().queries(options["first_keys"], DOCUMENT_STARTS)
        local = as_array(context_shard().layout.positions(len(arrays[0]), backend.rank))
        shape = (*arrays[0].shape[:2], arrays[0].shape[2] * arrays[2].shape[3])
        return run_operator(
            lambda q, k, v: context_parallel_attention(q, k, v, *groups, AttentionRule(scale=0.3, **options)),
            [x[local] for x in arrays],
            gradients=[upstream(shape, 0)[local]],
        )
    finally:
        parallel_state.destroy_model_parallel()


@cache
def whole_attention(call: bytes) -> tuple[list, list]:
    """(outputs, gradients) of pickled (arrays, options) on one rank, computed once for all layouts."""
    return run(1, cut_attention, (1, RING, None), *pickle.loads(call))[0]


def cancelled(arrays) -> float:
    """A tenth of the largest term of the gradients of queries and keys. Where a row sees one key they are differences
    of equal terms: 0 but for the rounding of the terms, which was 0.07e-6 of the largest."""
    q, k, v = arrays
    gradient = upstream((*q.shape[:2], q.shape[2] * v.shape[3]), 0).reshape(*q.shape[:3], v.shape[3])
    products = np.einsum("sbne,tbne->bnst", gradient, np.repeat(v, q.shape[2] // v.shape[2], axis=2))
    return 0.1 * 0.3 * float(np.abs(products).max() * max(np.abs(q).max(), np.abs(k).max()))


def check(layout, arrays, options, implementation="host", cancelled=0.0) -> None:
    """cancelled: the bound of terms that cancel in the gradients of queries and keys."""
    parts = run(layout[0], cut_attention, layout, arrays, options, implementation)
    together = [np.concatenate(pieces) for pieces in zip(*(out + gradients for out, gradients in parts), strict=True)]
    out, gradients = whole_attention(pickle.dumps((arrays, options)))
    order = ContextLayout.of(*layout)
    least = (0.1, max(0.1, cancelled), max(0.1, cancelled), 0.1)
    for ours, expected, floor in zip(together, out + gradients, least, strict=True):
        assert_close(order.to_whole(ours), expected, 2e-6, floor)


@pytest.mark.parametrize("implementation", ["host", "ops"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_causal(layout, shape, implementation):
    """Every context-parallel algorithm on `host` and `ops` kernels, with numbers of key/value heads that the degree
    divides or not: output and gradients are one rank's."""
    check(LAYOUTS[layout], heads(24, 2, *SHAPES[shape], 5, 3), {}, implementation)


OPTIONS = {
    "documents": lambda length, batch: {"mask": document_mask(length, batch)},
    "one mask for all rows": lambda length, batch: {"mask": document_mask(length, 1)},
    "document starts": lambda length, batch: {"first_keys": drawn_starts(batch, length, 5)},
    "document starts, window, dropout": lambda length, batch: {
        "first_keys": drawn_starts(batch, length, 6, 0.05),
        "form": ScoreForm(window=5),
        "dropout_rate": 0.3,
        "dropout_key": (4, 2),
    },
    "document starts and a mask": lambda length, batch: {
        "first_keys": drawn_starts(batch, length, 7),
        "mask": document_mask(length, 1),
    },
    "everything seen": lambda length, batch: {"causal": False},
    "dropout": lambda length, batch: {"dropout_rate": 0.3, "dropout_key": (4, 1), "head_offset": 3},
    "window": lambda length, batch: {"form": ScoreForm(window=3)},
    "window and documents": lambda length, batch: {"form": ScoreForm(window=5), "mask": document_mask(length, batch)},
    "alibi, cap, window": lambda length, batch: {"form": ScoreForm(9, 0.5, alibi_slopes(12)), "head_offset": 2},
    "dropout and documents": lambda length, batch: {
        "dropout_rate": 0.3,
        "dropout_key": (4, 2),
        "mask": document_mask(length, batch),
    },
}


@pytest.mark.parametrize("implementation", ["host", "ops"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("layout", ["cp2 ring", "cp4 ring", "cp2 ulysses", "cp4 hybrid"])
def test_masks_and_dropout(layout, option, implementation):
    """Hidden scores are -10000 across ranks too, so that a row without any key attends evenly to all, and dropout masks
    are functions of the global head, row and column."""
    check(LAYOUTS[layout], heads(16, 3, 8, 4, 3, 4), OPTIONS[option](16, 3), implementation)


@pytest.mark.parametrize("form", [PLAIN, ScoreForm(window=250)], ids=["all", "window"])
@pytest.mark.parametrize("layout", ["cp2 ring", "cp4 hybrid"])
def test_chunks_across_several_blocks_of_queries(layout, form):
    """Chunks whose length is no multiple of the host kernel's 128 query rows, with rows that see no key in a chunk: one
    rank's output and gradients."""
    options = {"dropout_rate": 0.1, "dropout_key": (1,), "form": form}
    check(LAYOUTS[layout], heads(1200, 1, 2, 1, 4, 4), options)
    check(LAYOUTS[layout], heads(1200, 1, 2, 1, 4, 4), options | {"first_keys": drawn_starts(1, 1200, 1, 0.01)})


@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    scale=st.integers(1, 3),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    heads_per_group=st.integers(1, 2),
    head_size=st.integers(1, 5),
    value_size=st.integers(1, 5),
    masked=st.booleans(),
    ends=st.sampled_from([None, 0.1, 0.3]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape(layout, scale, batch, groups, heads_per_group, head_size, value_size, masked, ends):
    """Drawn batches, head sizes, lengths, masks and document ends: output and gradients are one rank's, to the rounding
    of the terms of which they are sums."""
    size, length = LAYOUTS[layout][0], 2 * LAYOUTS[layout][0] * scale
    arrays = heads(length, batch, groups * heads_per_group * size, groups, head_size, value_size)
    options = {"mask": document_mask(length, batch)} if masked else {}
    check(
        LAYOUTS[layout],
        arrays,
        options if ends is None else options | {"first_keys": drawn_starts(batch, length, 1, ends)},
        cancelled=cancelled(arrays),
    )
