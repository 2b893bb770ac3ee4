"""The parts of a vocabulary-parallel cross entropy, in both implementations, and its operator on the tape."""

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from pynative.kernels.host import threads
from pynative.kernels.ops import vocabulary as composed
from pynative.tape.autograd import backward, leaf, recording, take_gradient
from pynative.tensor_parallel import vocab_parallel_cross_entropy
from tests.support import kernels as support
from tests.support.kernels import normal, tensor


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16], ids=str)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_cross_entropy_pieces_make_up_the_cross_entropy(ranks, overwrite, dtype, implementation):
    """Loss and gradient from each rank's columns of logits, with the collectives between done by hand here.

    Statistics and losses are float32; the gradient is rounded once, to the logits' type.
    """
    target = np.array([[0, 9], [5, 4], [3, 3], [8, 1]], np.int32)
    width, weights = 10 // ranks, normal(4, 2, seed=5)
    logits = support.values(tensor(3 * normal(4, 2, 10), dtype))
    parts = [tensor(logits[..., r * width : (r + 1) * width], dtype) for r in range(ranks)]
    ids = from_numpy(target)
    statistics = [kernels.softmax_statistics(part, ids, r * width) for r, part in enumerate(parts)]
    highest = tensor(np.max([support.values(own[0]) for own in statistics], axis=0))
    addends = [kernels.cross_entropy_addends(own[0], highest, own[1], own[2]) for own in statistics]
    added = tensor(sum(support.values(packed) for packed in addends))
    probabilities = support.softmax(logits.astype(np.float64))
    chosen = np.take_along_axis(probabilities, target[..., None], -1)[..., 0]
    support.assert_close(support.values(kernels.cross_entropy_loss(added, highest)), -np.log(chosen), 2e-6)

    gradients = [
        kernels.cross_entropy_gradient(part, highest, added, ids, r * width, tensor(weights), overwrite)
        for r, part in enumerate(parts)
    ]
    assert {gradient.dtype for gradient in gradients} == {dtype}
    expected = (probabilities - np.eye(10)[target]) * weights[..., None]
    given = np.concatenate([support.values(gradient) for gradient in gradients], -1)
    if dtype == mindspore.float32:
        support.assert_close(given, expected, 1e-6)
    else:
        assert np.all(np.abs(given - expected) <= np.abs(expected) * 2.0**-8)
    if not overwrite:
        kept = np.concatenate([support.values(part) for part in parts], -1)
        np.testing.assert_array_equal(kept, logits)


def test_cross_entropy_in_blocks_of_rows(implementation, monkeypatch):
    """Statistics and gradient computed in several blocks of rows are those of one block."""
    logits, target, ones = tensor(normal(7, 12)), from_numpy(np.arange(7, dtype=np.int32)), tensor(np.ones(7))

    def everything() -> list[np.ndarray]:
        maximum, total, chosen = kernels.softmax_statistics(logits, target)
        gradient = kernels.cross_entropy_gradient(logits, maximum, tensor(np.ones((2, 7))), target, 0, ones)
        return [support.values(x) for x in (maximum, total, chosen, gradient)]

    whole = everything()
    monkeypatch.setattr(composed, "BLOCK_ENTRIES", 25)
    monkeypatch.setattr(threads, "BLOCK_BYTES", 100)
    for one, other in zip(everything(), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_logits_that_are_infinite_or_no_numbers_show(implementation):
    """Infinite and NaN logits give gradients that are not finite, where loss scaling looks for an overflow."""
    ids, ones = from_numpy(np.zeros(2, np.int32)), tensor(np.ones(2))
    for bad in (np.inf, np.nan):
        logits = tensor(np.array([[0, bad, 1, 2], [0, 1, 2, 3]]))
        maximum, total, chosen = kernels.softmax_statistics(logits, ids)
        added = kernels.cross_entropy_addends(maximum, maximum, total, chosen)
        loss = support.values(kernels.cross_entropy_loss(added, maximum))
        gradient = support.values(kernels.cross_entropy_gradient(logits, maximum, added, ids, 0, ones))
        assert not np.isfinite(loss[0]) and np.isfinite(loss[1])
        assert not np.isfinite(gradient[0]).all() and np.isfinite(gradient[1]).all()


class OneRank:
    """A process group of one rank."""

    rank = 0

    def all_reduce(self, x, op="sum"):
        return x


@pytest.mark.parametrize("overwrite", [False, True])
def test_overwriting_the_logits_changes_no_gradient(overwrite, implementation):
    """The gradient is right with overwrite_logits and without; without, the logits' memory is unchanged."""
    array, target = normal(6, 12), from_numpy(np.arange(6, dtype=np.int32))
    logits = leaf(tensor(array.copy()))
    with recording():
        losses = vocab_parallel_cross_entropy(logits, target, OneRank(), overwrite)
    backward([losses], [tensor(np.full(6, 0.5))])
    expected = 0.5 * (support.softmax(array.astype(np.float64)) - np.eye(12)[np.arange(6)])
    support.assert_close(support.values(take_gradient(logits)), expected, 1e-6)
    if not overwrite:
        np.testing.assert_array_equal(support.values(logits), array)


@pytest.mark.parametrize("operator", [lambda x: kernels.soft_cap(x, 3.0), lambda x: kernels.scale(x, 0.5)])
def test_what_makes_the_logits_does_not_need_them(operator, implementation):
    """The operators that may stand before the loss, soft_cap and scale, have the same gradient when the loss overwrites
    their output."""
    gradients = []
    for overwrite in (False, True):
        start = leaf(tensor(3 * normal(6, 12)))
        with recording():
            logits, target = operator(start * 1.0), from_numpy(np.arange(6, dtype=np.int32))
            losses = vocab_parallel_cross_entropy(logits, target, OneRank(), overwrite)
        backward([losses], [tensor(np.ones(6))])
        gradients.append(support.values(take_gradient(start)))
    np.testing.assert_array_equal(*gradients)


def test_a_second_backward_of_overwritten_logits_is_refused():
    """It would start from overwritten logits: an AssertionError."""
    logits, target = leaf(tensor(normal(2, 5))), from_numpy(np.zeros(2, np.int32))
    with recording():
        losses = vocab_parallel_cross_entropy(logits, target, OneRank(), overwrite_logits=True)
    backward([losses], [tensor(np.ones(2))], keep_graph=True)
    with pytest.raises(AssertionError, match="over the logits"):
        backward([losses], [tensor(np.ones(2))])
