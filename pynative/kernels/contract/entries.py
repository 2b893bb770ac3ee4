# mypy: disable-error-code=empty-body
"""Contract of the operators of compressed attention: entries that stand for windows of tokens, their choice by an
indexer, and the indexer's loss.

s tokens have c = s // ratio whole windows, each of which gives one entry; d is an entry's size. j heads of the indexer,
e their size. `hidden` is bool [b or 1, 1, s, c], True where a query does not see an entry. `seen`: int32 [s, b or 1],
the number of entries, the first ones, that each query may see.
"""

from mindspore import Tensor

from parallel_core.numerics.dtypes import Array


def pool_windows(values: Tensor, gates: Tensor, bias: Tensor, ratio: int, size: int) -> Tensor:
    """The sum of a window's values [s, b, m d], weighed channel by channel by the softmax over its tokens of gates
    [s, b, m d] + bias [ratio, m d] -> [c, b, d], c = s // ratio whole windows; size: d.

    m 1: windows lie side by side. m 2: an entry's window has the second d channels of its own `ratio` tokens and the
    first d of the `ratio` tokens before them (the first entry has only its own), so that windows overlap. Computed in
    float32, rounded to values' type.
    """


def choose_entries(query: Tensor, key: Tensor, weights: Tensor, topk: int, seen: Array) -> Tensor:
    """query [s, b, j, e], key [c, b, e], weights [s, b, j] -> hidden, bool [b, 1, s, c]: True for all but the best topk
    of the entries that a query may see, by sum over the j heads of weight * relu(query . key); of equal ones the latest
    are the best. seen: int32 [s, b or 1], how many entries, the first ones, each query may see. Not recorded."""


def entries_target(q: Tensor, k: Tensor, hidden: Tensor, scale: float, maximum: Tensor, inverse_sum: Tensor) -> Tensor:
    """q [s, b, n, d], k [c, b, 1, d] -> float32 [b, s, c]: the probabilities of the entries, whose scores are `scale` *
    (q . k), in an attention over them and further keys, summed over heads; `maximum` and `inverse_sum` [b, n, s]: the
    statistics of that attention's rows (`Partial`). 0 where an entry is hidden: bool [b or 1, 1, s, c], True
    where a query does not see an entry.

    Not recorded.
    """


def entries_gradient(
    query: Tensor, key: Tensor, weights: Tensor, hidden: Tensor, target: Tensor, factor: float
) -> tuple[float, Tensor, Tensor, Tensor]:
    """(L, dquery, dkey, dweights) of L = KL(target || softmax(scores of `choose_entries`)) over entries that are not
    hidden, summed over queries that see any.

    target [b, s, c], 0 where an entry is hidden; each query's is first divided by its sum. 1e-10 is added to both
    probabilities in the logarithms. Gradients are float32 and multiplied by `factor`, L is not. Not recorded.
    """
