"""The operators of sparse attention against numpy in float64: which keys are chosen, attention to them, the loss."""

from dataclasses import replace

import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.context import Run, runs
from pynative import kernels
from pynative.kernels.block import AttentionRule, Scores
from pynative.kernels.ops import blocked_attention
from tests.support.kernels import normal, run_operator, tensor

S, B, J, C, TOPK, SCALE = 300, 2, 3, 8, 17, 0.3
"""More queries than a block has, in both implementations."""
QUERY, KEY, WEIGHTS = normal(S, B, J, C), normal(S, B, C, seed=1), normal(S, B, J, seed=2)
Q, K, V = normal(S, B, 2, 12, seed=3), normal(S, B, 2, 12, seed=4), normal(S, B, 2, 6, seed=5)
CAUSAL = np.tri(S, dtype=bool)
WHOLE = (range(S),)


def scores(query=QUERY, key=KEY, weights=WEIGHTS) -> np.ndarray:
    products = np.maximum(np.einsum("sbjc,tbc->bstj", query, key, dtype=np.float64), 0)
    return np.einsum("bstj,sbj->bst", products, weights)


def best(values: np.ndarray) -> np.ndarray:
    """The TOPK keys that each query may see with the largest values, bool [b, s, s]; of equal ones the first."""
    values = np.where(CAUSAL, values, -np.inf)
    order = np.argsort(-values, axis=-1, kind="stable")[..., :TOPK]
    shown = np.zeros(values.shape, bool)
    np.put_along_axis(shown, order, True, axis=-1)
    return shown & CAUSAL


def softmax(values: np.ndarray, shown: np.ndarray) -> np.ndarray:
    values = np.where(shown, values, -np.inf)
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def probabilities(shown: np.ndarray) -> np.ndarray:
    """Attention's probabilities in float64, [b, n, s, s], among the keys shown."""
    return softmax(np.einsum("sbnd,tbnd->bnst", Q, K, dtype=np.float64) * SCALE, shown[:, None])


def shown_by(chosen: np.ndarray) -> np.ndarray:
    shown = np.zeros((B, S, S + 1), bool)
    np.put_along_axis(shown, np.where(chosen < 0, S, chosen), True, axis=-1)
    return shown[..., :S]


@pytest.mark.parametrize("ties", [False, True])
def test_choice(implementation, ties):
    """`choose_keys` chooses numpy's keys, of equal scores the first; most scores are 0, as keys are orthogonal to all
    queries."""
    key = np.where(np.arange(S)[:, None, None] % 3 == 0, KEY, 0).astype(np.float32) if ties else KEY
    chosen = kernels.choose_keys(tensor(QUERY), tensor(key), tensor(WEIGHTS), TOPK, WHOLE).asnumpy()
    assert np.array_equal(shown_by(chosen), best(scores(key=key)))
    assert np.array_equal((chosen >= 0).sum(axis=-1)[0], np.minimum(np.arange(S) + 1, TOPK))


def test_attention_to_chosen_keys(implementation):
    """`sparse_attention` has output and gradients of attention with a mask that hides all keys but the chosen ones."""
    chosen = kernels.choose_keys(tensor(QUERY), tensor(KEY), tensor(WEIGHTS), TOPK, WHOLE)
    hidden = from_numpy(~shown_by(chosen.asnumpy())[:, None])
    sparse = run_operator(lambda *x: kernels.sparse_attention(*x, chosen, SCALE), (Q, K, V))
    masked = run_operator(lambda *x: kernels.attention(*x, AttentionRule(scale=SCALE, mask=hidden)), (Q, K, V))
    weighted = np.einsum("bnst,tbne->sbne", probabilities(best(scores())), V).reshape(S, B, -1)
    np.testing.assert_allclose(sparse[0][0], weighted, atol=1e-5)
    for one, other in zip((*sparse[0], *sparse[1]), (*masked[0], *masked[1]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("of_documents", [False, True])
def test_chosen_keys_beside_a_mask(implementation, of_documents):
    """Attention, at once and in blocks, with chosen keys beside a mask, or beside documents, sees the keys that both
    show."""
    own = np.arange(S)[:, None]
    keys = np.concatenate((own, own // 2), axis=1)
    chosen = from_numpy(np.broadcast_to(keys.astype(np.int32), (B, S, 2)).copy())
    first_keys = np.where(own < 150, 0, 150)
    masked = np.arange(S) < first_keys if of_documents else ~CAUSAL | (np.arange(S) % 3 == 1) & ~np.eye(S, dtype=bool)
    beside = {"first_keys": np.broadcast_to(first_keys[:, 0].astype(np.int32), (B, S))}
    beside = beside if of_documents else {"mask": from_numpy(masked[None, None])}
    rule = AttentionRule(scale=SCALE, chosen=chosen, **beside)
    both = AttentionRule(scale=SCALE, mask=from_numpy(~shown_by(chosen.asnumpy())[:, None] | masked))
    expected = run_operator(lambda *x: kernels.attention(*x, both), (Q, K, V))
    for attention in (kernels.attention, blocked_attention.attention):
        found = run_operator(lambda *x, of=attention: of(*x, rule), (Q, K, V))
        for one, other in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("of_chosen_alone", [False, True])
def test_loss_of_the_indexer(implementation, of_chosen_alone):
    """The indexer's loss, and its gradients against finite differences in float64, in several blocks."""
    shown = best(scores()) if of_chosen_alone else np.broadcast_to(CAUSAL, (B, S, S))
    chosen = kernels.choose_keys(tensor(QUERY), tensor(KEY), tensor(WEIGHTS), TOPK, WHOLE) if of_chosen_alone else None
    target = probabilities(shown).sum(axis=1)
    indexer, factor, dkey = tuple(map(tensor, (QUERY, KEY, WEIGHTS))), 0.5, from_numpy(np.zeros(KEY.shape, np.float32))
    blocks, total = [], 0.0
    for queries in runs(WHOLE, 256):
        found = kernels.attention_target(tensor(Q), tensor(K), chosen, queries, SCALE)
        rows, keys = slice(queries.rows.start, queries.rows.stop), queries.positions.stop
        np.testing.assert_allclose(found.asnumpy(), target[:, rows, :keys], atol=1e-5)
        loss, *gradients = kernels.indexer_gradient(*indexer, chosen, found, queries, factor, dkey)
        total += loss
        blocks.append([x.asnumpy() for x in gradients])
    dquery, dweights = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    wanted = target / target.sum(axis=-1, keepdims=True)

    def divergence(*inputs: np.ndarray) -> float:
        found = softmax(scores(*inputs), shown)
        return float((wanted * (np.log(wanted + 1e-10) - np.log(found + 1e-10))).sum())

    inputs = [x.astype(np.float64) for x in (QUERY, KEY, WEIGHTS)]
    np.testing.assert_allclose(total, divergence(*inputs), rtol=1e-5)
    for position, gradient in enumerate((dquery, dkey.asnumpy(), dweights)):
        direction = normal(*gradient.shape, seed=9).astype(np.float64)
        ends = [list(inputs), list(inputs)]
        for end, step in zip(ends, (1e-6, -1e-6), strict=True):
            end[position] = inputs[position] + step * direction
        slope = (divergence(*ends[0]) - divergence(*ends[1])) / 2e-6
        assert abs((gradient * direction).sum() - factor * slope) < 1e-4 * np.abs(gradient * direction).sum()


SHARD = (range(40, 110), range(200, 290))
"""Positions of the queries of one context-parallel rank."""


def test_queries_of_a_shard(implementation):
    """Choice, target, loss and gradients of a rank's queries among all keys are their rows of the whole result."""
    places = np.concatenate([np.array(run) for run in SHARD])
    own = [tensor(QUERY[places]), tensor(KEY), tensor(WEIGHTS[places])]
    whole = [tensor(QUERY), tensor(KEY), tensor(WEIGHTS)]
    chosen = kernels.choose_keys(*own, TOPK, SHARD)
    everyones = kernels.choose_keys(*whole, TOPK, WHOLE)
    assert np.array_equal(chosen.asnumpy(), everyones.asnumpy()[:, places])
    sums = [from_numpy(np.zeros(KEY.shape, np.float32)) for _ in range(2)]
    for queries in runs(SHARD, 64):
        target = kernels.attention_target(tensor(Q[places]), tensor(K), chosen, queries, SCALE)
        loss, *gradients = kernels.indexer_gradient(*own, chosen, target, queries, 0.5, sums[0])
        same = Run(queries.positions, queries.positions)
        wanted = kernels.attention_target(tensor(Q), tensor(K), everyones, same, SCALE)
        expected, *others = kernels.indexer_gradient(*whole, everyones, wanted, same, 0.5, sums[1])
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        for one, other in zip((target, *gradients), (wanted, *others), strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), atol=1e-6)
    np.testing.assert_allclose(sums[0].asnumpy(), sums[1].asnumpy(), atol=1e-6)


def test_blocks_of_a_ring(implementation):
    """Queries whose chosen keys lie in two blocks, in some of which they have none: blocks added up equal sparse
    attention at once."""
    chosen = kernels.choose_keys(tensor(QUERY), tensor(KEY), tensor(WEIGHTS), 2, WHOLE)
    rule, half = AttentionRule(scale=SCALE, chosen=chosen), S // 2
    ones = np.ones((S, B, V.shape[2] * V.shape[3]), np.float32)
    (out,), (of_queries, *_) = run_operator(
        lambda *x: kernels.sparse_attention(*x, chosen, SCALE), (Q, K, V), gradients=[ones]
    )
    q, partial = tensor(Q[half:]), None
    pieces = []
    for keys, causal in ((range(half, S), True), (range(half), False)):
        scores = Scores.of(replace(rule, causal=causal), (range(half, S),), (keys,), S)
        pieces.append((tensor(K[keys.start : keys.stop]), tensor(V[keys.start : keys.stop]), scores))
    for k, v, scores in pieces:
        partial = kernels.attention_block(q, k, v, scores, partial)
    np.testing.assert_allclose(partial.out.asnumpy(), out[half:], atol=1e-5)
    dq = None
    for k, v, scores in pieces:
        dq, *_ = kernels.attention_block_gradient(q, k, v, tensor(ones[half:]), partial, scores, dq)
    np.testing.assert_allclose(dq.asnumpy(), of_queries[half:], atol=1e-5)
