"""The operators of compressed attention, in both implementations, equal their definitions in float64."""

import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from pynative.tape import autograd
from tests.support.kernels import Array, assert_close, assert_equals_reference, normal, tensor, values

pytestmark = pytest.mark.usefixtures("implementation")

LENGTH, BATCH, RATIO, SIZE = 11, 2, 3, 4
COUNT = LENGTH // RATIO
SEEN = ((np.arange(LENGTH, dtype=np.int32) + 1) // RATIO)[:, None]


def _softmax(x: Array, axis: int) -> Array:
    result = np.exp(x - x.max(axis, keepdims=True))
    return result / result.sum(axis, keepdims=True)


def pooled(x: Array, gates: Array, bias: Array) -> Array:
    """The definition, entry by entry: softmax(gates + bias)-weighted sum of a window of RATIO tokens, and of the window
    before it where x has two parts."""
    out = np.empty((COUNT, BATCH, SIZE))
    for i in range(COUNT):
        own = slice(i * RATIO, (i + 1) * RATIO)
        inside, scores = x[own, :, -SIZE:], gates[own, :, -SIZE:] + bias[:, None, -SIZE:]
        if x.shape[-1] > SIZE and i:
            before = slice((i - 1) * RATIO, i * RATIO)
            inside = np.concatenate((x[before, :, :SIZE], inside))
            scores = np.concatenate((gates[before, :, :SIZE] + bias[:, None, :SIZE], scores))
        out[i] = (_softmax(scores, 0) * inside).sum(0)
    return out


@pytest.mark.parametrize("parts", [1, 2])
def test_windows_are_pooled(parts):
    """`pool_windows` of separate and of overlapping windows equals `pooled`; tokens behind the last whole window have
    no part."""
    width = parts * SIZE
    inputs = normal(LENGTH, BATCH, width), normal(LENGTH, BATCH, width, seed=1), normal(RATIO, width, seed=2)
    assert_equals_reference(lambda x, z, b: kernels.pool_windows(x, z, b, RATIO, SIZE), pooled, inputs)


def test_pooling_leaves_its_values_alone():
    """`pool_windows` of separate windows leaves its values alone: after a forward and backward they are unchanged."""
    given = normal(LENGTH, BATCH, SIZE), normal(LENGTH, BATCH, SIZE, seed=1), normal(RATIO, SIZE, seed=2)
    leaves = [autograd.leaf(tensor(x.copy())) for x in given]
    with autograd.recording():
        pooled = kernels.pool_windows(*leaves, RATIO, SIZE)
    autograd.backward([pooled], [tensor(normal(COUNT, BATCH, SIZE, seed=3))])
    for leaf, x in zip(leaves, given, strict=True):
        np.testing.assert_array_equal(values(leaf), x)


QUERY, KEY, WEIGHTS = normal(LENGTH, BATCH, 3, 5), normal(COUNT, BATCH, 5, seed=1), normal(LENGTH, BATCH, 3, seed=2)


def scores(query: Array, key: Array, weights: Array) -> Array:
    products = np.maximum(np.einsum("sbje,cbe->bsjc", query, key), 0)
    return np.einsum("bsjc,sbj->bsc", products, weights)


def test_the_best_entries_are_chosen():
    """`choose_entries` takes the two entries with the best scores among those whose window each query has
    seen whole."""
    hidden = values(kernels.choose_entries(tensor(QUERY), tensor(KEY), tensor(WEIGHTS), 2, SEEN))
    allowed = np.where(np.arange(COUNT) < SEEN, scores(QUERY, KEY, WEIGHTS), -np.inf)
    order = np.argsort(allowed, axis=-1, kind="stable")[..., -2:]
    expected = np.ones((BATCH, LENGTH, COUNT), bool)
    np.put_along_axis(expected, order, False, axis=-1)
    np.testing.assert_array_equal(hidden[:, 0], expected | np.isneginf(allowed))


def test_targets_are_probabilities_among_all_keys():
    """`entries_target` is the sum over heads of exp(score - maximum) x inverse, with attention's own statistics of all
    keys."""
    q, k = normal(LENGTH, BATCH, 2, SIZE), normal(COUNT, BATCH, 1, SIZE, seed=3)
    hidden = (np.arange(COUNT) >= SEEN)[None, None]
    maximum, inverse = normal(BATCH, 2, LENGTH, seed=5), np.abs(normal(BATCH, 2, LENGTH, seed=6))
    found = kernels.entries_target(tensor(q), tensor(k), from_numpy(hidden), 0.5, tensor(maximum), tensor(inverse))
    products = 0.5 * np.einsum("sbnd,cbd->bnsc", q, k[:, :, 0])
    chances = np.exp(products - maximum[..., None]) * inverse[..., None]
    assert_close(values(found), np.where(hidden, 0, chances).sum(1), 3e-6)


def test_the_indexer_learns_what_attention_sees():
    """`entries_gradient`: the indexer's KL loss, and its gradients against finite differences in float64."""
    hidden = (np.arange(COUNT) >= SEEN)[None, None]
    target = np.where(hidden[:, 0], 0, np.abs(normal(BATCH, LENGTH, COUNT, seed=7)))
    given = [tensor(x) for x in (QUERY, KEY, WEIGHTS)]
    loss, *gradients = kernels.entries_gradient(*given, from_numpy(hidden), tensor(target.astype(np.float32)), 1.0)

    def reference(*inputs: Array) -> float:
        shown = ~hidden[0, 0]
        chances = np.where(shown, np.exp(scores(*inputs)), 0)
        chances = chances / np.maximum(chances.sum(-1, keepdims=True), 1e-300)
        goal = target / np.maximum(target.sum(-1, keepdims=True), 1e-300)
        return float(np.where(shown, goal * (np.log(goal + 1e-10) - np.log(chances + 1e-10)), 0).sum())

    inputs = [x.astype(np.float64) for x in (QUERY, KEY, WEIGHTS)]
    assert abs(loss - reference(*inputs)) < 1e-4
    for number, gradient in enumerate(gradients):
        flat, wanted = inputs[number].reshape(-1), np.empty(inputs[number].size)
        for place in range(flat.size):
            before = flat[place]
            flat[place] = before + 1e-5
            above = reference(*inputs)
            flat[place] = before - 1e-5
            wanted[place] = (above - reference(*inputs)) / 2e-5
            flat[place] = before
        assert_close(values(gradient), wanted.reshape(inputs[number].shape), 1e-4)
