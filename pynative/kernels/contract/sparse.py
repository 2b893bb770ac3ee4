# mypy: disable-error-code=empty-body
"""Contract of the operators of sparse attention: an indexer chooses the keys that a query attends to.

j heads of the indexer, c their size. Its score of a key for a query is I = sum over its heads of weight * relu(query .
key) (DeepSeek-V3.2, 2025, equation 1). `chosen` are positions of keys, int32 [b, s, k], -1 in the place of none; where
it may be None, that means all keys up to the query's own. Keys are those of a whole sequence of S, queries s of them.
"""

from mindspore import Tensor

from parallel_core.context import Ranges, Run


def choose_keys(query: Tensor, key: Tensor, weights: Tensor, topk: int, positions: Ranges) -> Tensor:
    """query [s, b, j, c] at `positions`, key [S, b, c], weights [s, b, j] -> positions of the topk keys, up to the
    query's own, with each query's highest finite scores, the sum over the j heads of weight * relu(query . key): int32
    [b, s, topk], ascending; -1 behind them where there are fewer; of equal scores the first. Not recorded."""


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """`attention` in which each query sees only its chosen keys, up to its own; there must be one at least. q, k
    [s, b, n, d], v [s, b, n, e] -> [s, b, n * e]; chosen: positions of keys, int32 [b, s, k], -1 for none."""


def attention_target(q: Tensor, k: Tensor, chosen: Tensor | None, queries: Run, scale: float) -> Tensor:
    """q [s, b, n, d], k [S, b, n, d] -> float32 [b, r, p], for the r queries of the run `queries` of the s, and the
    first p keys, up to the last query's own: the sum over heads of softmax(scale q k^T) over the keys that a query
    chose, one at least (chosen None: all up to its own); 0 for others.

    Not recorded.
    """


def indexer_gradient(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    chosen: Tensor | None,
    target: Tensor,
    queries: Run,
    factor: float,
    dkey: Tensor,
) -> tuple[float, Tensor, Tensor]:
    """(L, dquery [r, b, j, c], dweights [r, b, j]) of L = KL(target || softmax(I)), summed over the batch and the r
    queries of the run `queries` of the s of query [s, b, j, c] and weights [s, b, j]; key [S, b, c]; I the scores by
    which `choose_keys` chooses, of the chosen keys (None: all up to the query's own).

    target [b, r, p] as `attention_target` gives it; each row of it is first divided by its sum. 1e-10 is added to both
    probabilities in the logarithms. Gradients are float32 and multiplied by `factor`, L is not; the key's is added to
    dkey, float32 [S, b, c]. Not recorded.
    """
