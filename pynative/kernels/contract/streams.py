# mypy: disable-error-code=empty-body
"""Contract of the operators of hyper-connections (`parallel_core.numerics.hyper_connections`).

n residual streams of h features lie beside each other, x [s, b, n h]; their linear has m = 2 n + n n results for each
token, from which follow three sets of weights, always float32: pre [n] (of the streams in a block's input), post [n]
(of its output in each stream), comb [n n] (row j, column k: of stream j in the new stream k).
"""

from mindspore import Tensor

from parallel_core.numerics.hyper_connections import StreamRule


def repeat_streams(x: Tensor, streams: int) -> Tensor:
    """x [s, b, h] -> [s, b, n h]: n = `streams` copies of it beside each other."""


def collapse_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Tensor:
    """x [s, b, n h] -> its streams summed with the weights pre, [s, b, h], at the end of the model, where the linear
    has n results, for pre alone: weight [n, n h], base [n], scale [1]. pre follows from these by `rule` as in
    `read_streams`; rule.iterations is not read."""


def read_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> tuple[Tensor, Tensor]:
    """x [s, b, n h] -> (its streams summed with the weights pre [s, b, h], post and behind it comb, row by row, float32
    [s, b, n + n n]).

    The weights follow by `rule`, of at least one iteration, from u = x weight^T / rms(x) times scale + base, rms(x) =
    sqrt(mean(x^2) + rule.norm_epsilon): weight [m, n h], base [m], m = 2 n + n n, and scale [3], a number each for the
    parts of u that give pre [n], post [n] and comb [n n].
    """


def write_streams(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """x [s, b, n h], a block's output y [s, b, h], weights [s, b, n + n n] of `read_streams` -> [s, b, n h]: stream k
    is post_k y + sum_j comb_jk x_j."""
