"""The operators of experts equal their definitions, forward and every gradient, with groups that have no rows."""

from types import SimpleNamespace

import mindspore
import numpy as np
import pytest

from pynative import kernels
from pynative.kernels.host import experts as host_experts
from pynative.moe.experts import grouped_linear
from tests.support import kernels as support
from tests.support.kernels import assert_close, assert_equals_reference, normal, run_operator, tensor, values

ROUNDING = {mindspore.float16: 2.0**-9, mindspore.bfloat16: 2.0**-6}
COUNTS = [(3, 0, 2), (0, 0, 5), (5,), (1, 4, 0)]


def _spread(groups, counts):
    """The entry of each row's group: group i's is repeated counts[i] times."""
    return np.concatenate([np.repeat(group[None], count, axis=0) for group, count in zip(groups, counts, strict=True)])


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("counts", COUNTS)
def test_grouped_linear(counts):
    """Each row is multiplied by its group's weight; a group without rows has a weight gradient of zero."""
    weights = [normal(4, 3, seed=seed) for seed in range(len(counts))]
    assert_equals_reference(
        lambda x, *ws: grouped_linear(x, ws, counts),
        lambda x, *ws: np.einsum("ri,roi->ro", x, _spread(ws, counts)),
        (normal(5, 3, seed=9), *weights),
    )


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("weighted", [True, False])
def test_grouped_bias(counts, weighted):
    """`add_grouped_bias` adds each group's bias, times the row's factor if there is one, also with empty groups."""
    biases = [normal(4, seed=seed) for seed in range(len(counts))]
    factors = (np.abs(normal(5, seed=7)),) if weighted else ()
    assert_equals_reference(
        lambda y, *given: kernels.add_grouped_bias(
            y, given[: len(counts)], counts, given[len(counts)] if weighted else None
        ),
        lambda y, *given: y + _spread(given[: len(counts)], counts) * (given[len(counts)][:, None] if weighted else 1),
        (normal(5, 4, seed=8), *biases, *factors),
    )


def _silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("rows", [5, 1])
def test_weighted_activation(rows):
    """`weighted_activation` is SwiGLU of a row times the row's factor, forward and every gradient."""
    assert_equals_reference(
        lambda x, p: kernels.weighted_activation(x, p, "swiglu"),
        lambda x, p: _silu(x[:, :3]) * x[:, 3:] * p[:, None],
        (normal(rows, 6), np.abs(normal(rows, seed=1))),
    )


@pytest.mark.usefixtures("implementation")
def test_sigmoid_gate():
    """`sigmoid_gate` is y times the sigmoid of x @ w.T, forward and every gradient."""
    assert_equals_reference(
        lambda y, x, w: kernels.sigmoid_gate(y, x, w),
        lambda y, x, w: y / (1 + np.exp(-(x @ w.T))),
        (normal(3, 2, 4), normal(3, 2, 4, seed=1), normal(1, 4, seed=2)),
    )


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("counts", COUNTS)
def test_rows_are_split_and_joined(counts):
    """`split_rows` gives each group's rows, also none, `join_rows` the whole again; each is the other's backward."""
    x = normal(5, 3)

    def through(x):
        parts = kernels.split_rows(x, counts)
        assert [len(part) for part in parts] == list(counts)
        return kernels.join_rows([part * 2.0 for part in parts])

    assert_equals_reference(through, lambda x: 2 * x, (x,))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("accumulate", [True, False])
def test_weight_gradients_go_where_they_are_wanted(accumulate):
    """Weight gradients of grouped products go into given memory, added or in its place; a group without rows adds
    nothing."""
    counts, dy, x = (2, 0, 3), normal(5, 4), normal(5, 3, seed=1)
    before = [normal(4, 3, seed=seed) for seed in range(3)]
    out = [tensor(array.copy()) for array in before]
    given = kernels.grouped_linear_weight_gradient(tensor(dy), tensor(x), counts, out, [accumulate] * 3)
    for n, (start, stop) in enumerate(((0, 2), (2, 2), (2, 5))):
        assert given[n] is out[n]
        assert_close(values(out[n]), dy[start:stop].T @ x[start:stop] + accumulate * before[n], 1e-6)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_16_bit_types(dtype):
    """Experts' operators compute in float32 and round results and gradients once; the routing factors stay float32."""
    counts, shape = (3, 0, 2), (5, 6)
    x, weights = normal(*shape), [normal(4, 6, seed=seed) for seed in range(3)]
    cases = [
        (lambda x, *ws: grouped_linear(x, ws, counts), (x, *weights)),
        (lambda x: kernels.weighted_activation(x, tensor(np.full(5, 0.5, np.float32)), "swiglu"), (x,)),
        (kernels.sigmoid_gate, (x, normal(*shape, seed=4), normal(1, 6, seed=5))),
    ]
    for operator, inputs in cases:
        rounded = [values(tensor(array, dtype)) for array in inputs]
        outputs, gradients = run_operator(operator, rounded, dtype)
        expected, expected_gradients = run_operator(operator, rounded)
        for one, other in zip((*outputs, *gradients), (*expected, *expected_gradients), strict=True):
            assert_close(one, other, ROUNDING[dtype])


def test_no_rows_at_all():
    """Operators of experts on a rank to which no token goes give empty results and weight gradients of zero."""
    for name in ("host", "ops"):
        kernels.use(name)
        weights = [normal(4, 3, seed=seed) for seed in range(2)]
        outputs, gradients = run_operator(
            lambda x, *ws: kernels.weighted_activation(
                grouped_linear(x, ws, (0, 0)), tensor(np.zeros(0, np.float32)), "silu"
            ),
            (np.zeros((0, 3), np.float32), *weights),
        )
        assert outputs[0].shape == (0, 4) and all((gradient == 0).all() for gradient in gradients)
        assert support.values(tensor(outputs[0])).size == 0


def test_products_have_few_shapes(monkeypatch):
    """On the host, grouped products are given multiples of 32 rows, as oneDNN makes a primitive for each number of
    rows, which changes in every step; results are unchanged."""
    counts, asked = [1, 0, 31, 32, 33, 700], []
    product = host_experts.ENGINE.matmul

    def noted(left, right, out, *more):
        asked.append((left.shape, right.shape))
        product(left, right, out, *more)

    monkeypatch.setattr(host_experts, "ENGINE", SimpleNamespace(matmul=noted))
    weights, x, dy = [normal(6, 5, seed=n) for n in range(6)], normal(sum(counts), 5), normal(sum(counts), 6, seed=9)
    y = kernels.grouped_linear_forward(tensor(x), [tensor(w) for w in weights], counts)
    assert all(left[0] % 32 == 0 for left, _ in asked)
    asked.clear()
    own = kernels.grouped_linear_weight_gradient(tensor(dy), tensor(x), counts, [None] * 6, [False] * 6)
    assert all(right[0] % 32 == 0 for _, right in asked)
    parts = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    assert_close(values(y), np.concatenate([x[at] @ w.T for at, w in zip(parts, weights, strict=True)]), 1e-6)
    for gradient, at in zip(own, parts, strict=True):
        assert_close(values(gradient), dy[at].T @ x[at], 1e-6)
