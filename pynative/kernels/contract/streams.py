# mypy: disable-error-code=empty-body
"""Contract of the operators of hyper-connections (`parallel_core.numerics.hyper_connections`).

n residual streams of h features lie beside each other, x [s, b, n h]; m results of their linear (`StreamRule.width`).
Weights are float32 always: of a token post [n], and behind it comb [n n], row by row.
"""

from mindspore import Tensor

from parallel_core.numerics.hyper_connections import StreamRule


def repeat_streams(x: Tensor, streams: int) -> Tensor:
    """x [s, b, h] -> [s, b, n h], n times the same."""


def collapse_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Tensor:
    """x [s, b, n h] -> the sum of its streams by `pre` alone, [s, b, h]: weight [n, n h], base [n], scale [1]."""


def read_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> tuple[Tensor, Tensor]:
    """x [s, b, n h] -> (the sum of its streams by `pre` [s, b, h], weights float32 [s, b, n + n n]).

    Of u = x weight^T / rms(x), weight [m, n h], each group has its own of scale [3], and all are shifted by base [m].
    """


def write_streams(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """x [s, b, n h], a block's output y [s, b, h], weights [s, b, n + n n] -> [s, b, n h]: stream k is post_k y +
    sum_j comb_jk x_j."""
