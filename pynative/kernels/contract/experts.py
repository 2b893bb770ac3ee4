# mypy: disable-error-code=empty-body
"""Contract of the operators of a mixture of experts: the router, and linears over groups of rows, with a weight of
each group.

T = s b tokens, E experts, k chosen ones, G groups of experts. R rows, all groups' together; `counts` says how many rows
each group has, in order; a group may have none.
"""

from collections.abc import Sequence

from mindspore import Tensor

from parallel_core.moe.routing import Noise, RoutingRule
from parallel_core.numerics.dtypes import Array


def choose_experts(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None, balanced: bool = False) -> Tensor:
    """logits [..., E] -> [T, k] int32, the experts that the rule chooses, best first. Not recorded.

    bias [E] float32 is added to the scores for the choice alone. balanced: the largest of exp(logits), as
    Sinkhorn's iteration has balanced them, are chosen; neither bias nor groups of experts count then.
    """


def routing_probabilities(logits: Tensor, experts: Tensor, rule: RoutingRule) -> Tensor:
    """logits [..., E], experts [T, k] -> the chosen experts' weights by the rule, [T, k] float32."""


def sample_experts(logits: Tensor, jitter: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
    """logits [..., E] -> (weights [T, 2] float32, experts [T, 2] int32): two experts of each token, drawn by
    SparseMixer with the random numbers `noise`, or without them the two best. jitter: a draw leaves out experts whose
    logit is more than 2 jitter max(|logit|, best) below `best`, the highest logit of the experts not drawn yet
    (`parallel_core.moe.routing.sample`)."""


def drop_over_capacity(
    probs: Tensor, experts: Tensor, capacity: int | Array, by_position: bool
) -> tuple[Tensor, Tensor]:
    """(probs, experts) [T, k], with 0 and -1 in the place of each choice that is dropped: of more than `capacity`
    choices an expert keeps those of the largest probability or, by_position, of the first tokens. capacity: one number
    for all experts, or an array [E]. The given experts have no -1."""


def load_of_experts(experts: Tensor, batch: int, number: int, groups: int | None = None) -> Tensor:
    """experts [s b, k] -> [b, E] float32: how many of each sequence's choices fell on each expert; -1 is none.

    batch: b. number: E, of all experts. groups: G; with it the result is [b, G], how many of each sequence's tokens go
    to at least one expert of each group. Not recorded.
    """


def router_statistics(logits: Tensor, rule: RoutingRule, sizes: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """logits [s, b, E] -> the sums from which the router's losses are computed, float32. Not recorded.

    Returns the sum over s of each sequence's normalized scores [b, E]; how many of its tokens have an expert among the
    k best by these scores [b, E]; and the sum over tokens of log(sum(exp(logits)))^2, a scalar (0 unless `sizes`).
    """


def with_router_losses(logits: Tensor, weights: Tensor | None, z_weight: float, rule: RoutingRule) -> Tensor:
    """The logits [s, b, E], unchanged. The backward adds to their gradient that of two losses: the sum of normalized
    scores [s, b, E] * weights [b or 1, E] (None: without this loss), and z_weight * the sum over tokens of
    log(sum(exp(logits)))^2."""


def grouped_linear_forward(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """x [R, i], weights [o, i] of the groups -> each row times its group's weight^T [R, o]. counts: the number of rows
    of each group, in order. Not recorded."""


def grouped_linear_input_gradient(dy: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """dy [R, o], weights [o, i] of the groups -> each row times its group's weight [R, i]. counts: the number of rows
    of each group, in order. Not recorded."""


def grouped_linear_weight_gradient(
    dy: Tensor, x: Tensor, counts: Sequence[int], out: Sequence[Tensor | None], accumulate: Sequence[bool]
) -> list[Tensor]:
    """dy [R, o], x [R, i] -> of each group dy^T x [o, i], zeros where it has no rows; written into the group's `out`
    where that is given or, where its `accumulate` is True, added to it. counts: the number of rows of each group, in
    order. Not recorded."""


def add_grouped_bias(
    y: Tensor, biases: Sequence[Tensor], counts: Sequence[int], factors: Tensor | None = None
) -> Tensor:
    """y [R, o] + factor * bias, with the bias [o] of each row's group and the row's factor in factors, float32 [R]
    (None: 1). counts: the number of rows of each group, in order."""


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    """activation(x) times each row's factor: x [R, f], gated [R, 2f] -> [R, f]; factors float32 [R].

    activation: one of `bias_activation`'s.
    """


def split_rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """x [R, ...] -> the rows of each group. counts: the number of rows of each group, in order."""


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """The rows of each group -> [R, ...], one group after the other."""


def sigmoid_gate(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y [..., h] times sigmoid(x weight^T) of its row: x [..., h], weight [1, h]."""
