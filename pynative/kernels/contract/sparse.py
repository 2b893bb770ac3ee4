# mypy: disable-error-code=empty-body
"""Contract of the operators of sparse attention: an indexer chooses the keys that a query attends to.

j heads of the indexer, c their size. Its score of a key for a query is I = sum over its heads of weight * relu(query .
key) (DeepSeek-V3.2, 2025, equation 1). `chosen` are positions of keys, int32 [b, s, k], -1 in the place of none; where
it is None, all keys are, up to the query's own. Keys are those of a whole sequence of S, queries s of them.
"""

from mindspore import Tensor

from parallel_core.context import Ranges, Run


def choose_keys(query: Tensor, key: Tensor, weights: Tensor, topk: int, positions: Ranges) -> Tensor:
    """query [s, b, j, c] at these positions, key [S, b, c], weights [s, b, j] -> positions of each query's topk best
    keys, its own or earlier ones, by sum over the j heads of weight * relu(query . key): int32 [b, s, topk], ascending;
    -1 behind them where there are fewer; of equal ones the first. Not recorded."""


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """`attention` in which each query sees its chosen keys alone: q, k [s, b, n, d], v [s, b, n, e] -> [s, b, n *
    e]."""


def attention_target(q: Tensor, k: Tensor, chosen: Tensor | None, queries: Run, scale: float) -> Tensor:
    """q [s, b, n, d], k [S, b, n, d] -> float32 [b, q, k] for the run `queries` of q queries, and the first k keys, up
    to the last query's own: the sum over heads of softmax(scale q k^T) over the keys that a query chose (chosen None:
    all up to its own); 0 elsewhere.

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
    """(L, dquery [q, b, j, c], dweights [q, b, j]) of L = KL(target || softmax(I)), summed over the batch and the run
    `queries` of q queries out of the s of query [s, b, j, c] and weights [s, b, j]; key [S, b, c]; I the scores by
    which `choose_keys` chooses, of the chosen keys (None: all up to the query's own).

    target as `attention_target` gives it, which is first divided by its sum; gradients are float32 and multiplied by
    `factor`; the key's is added to dkey, float32 [S, b, c]. Not recorded.
    """
