"""Functions of Megatron's routers by their names and arguments, for cells of users.

T tokens, E experts, k chosen ones. Probabilities and maps are dense [T, E] here, as there.
"""

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.moe.routing import RoutingRule, get_capacity
from pynative import kernels
from pynative.tape.autograd import detached

__all__ = ["get_capacity", "switch_load_balancing_loss_func", "topk_softmax_with_capacity", "z_loss_func"]


def switch_load_balancing_loss_func(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    topk: int,
    num_experts: int,
    moe_aux_loss_coeff: float,
    fused: bool = False,
) -> Tensor:
    """coefficient * E / (k N^2) * sum_e(tokens_e sum_t probs_te), a scalar (Fedus et al., "Switch Transformers", 2021).

    probs: [T, E], of this rank's tokens; tokens_per_expert: [E], of all N tokens, on whichever ranks they are. fused:
    ignored.
    """
    factor = num_experts * moe_aux_loss_coeff / (topk * float(total_num_tokens) ** 2)
    return (probs.sum(axis=0) * ops.cast(tokens_per_expert, probs.dtype)).sum() * factor


def z_loss_func(logits: Tensor, z_loss_coeff: float) -> Tensor:
    """coefficient * the mean over tokens of log(sum_e(exp(logits_te)))^2, a scalar (Zoph et al., "ST-MoE", 2022)."""
    highest = detached(ops.amax(logits, -1, True))
    log_sum_exp = highest + ops.log(ops.exp(logits - highest).sum(axis=-1, keepdims=True))
    return ops.square(log_sum_exp).mean() * z_loss_coeff


def topk_softmax_with_capacity(
    logits: Tensor,
    topk: int,
    capacity_factor: float | None = None,
    pad_to_capacity: bool = False,
    drop_policy: str = "probs",
    use_pre_softmax: bool = False,
    num_groups: int | None = None,
    group_topk: int | None = None,
    scaling_factor: float | None = None,
    deterministic_mode: bool = False,
    score_function: str = "softmax",
    expert_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """logits [T, E] -> (probabilities [T, E] and bool map of choices [T, E], after dropping; tokens per expert before
    dropping [E]).

    capacity_factor: an expert's capacity is this times its even share of the choices, rounded up; None: nothing is
    dropped or filled. drop_policy: an expert with more tokens than its capacity keeps those of largest probability
    ("probs") or the first ("position"). pad_to_capacity: the map fills each expert up to its capacity, or to all T,
    with other tokens of probability 0. use_pre_softmax, num_groups, group_topk, scaling_factor, score_function:
    settings of a `RoutingRule`; sigmoid or sqrtsoftplus scores of several chosen experts are divided by their sum.
    expert_bias [E]: added to scores for the choice alone. deterministic_mode: ignored. Raises ValueError for an unknown
    drop_policy or score_function.
    """
    alone, number = score_function != "softmax", logits.shape[-1]
    if drop_policy not in ("probs", "position") or score_function not in ("softmax", "sigmoid", "sqrtsoftplus"):
        raise ValueError(f"drop_policy {drop_policy!r}, score_function {score_function!r}: not known")
    rule = RoutingRule(
        topk=topk, sigmoid=score_function == "sigmoid", root_softplus=score_function == "sqrtsoftplus",
        pre_softmax=use_pre_softmax, normalize=alone and topk > 1,
        scale=scaling_factor or 1.0, groups=num_groups or 1, group_topk=group_topk,
    )  # fmt: skip
    experts = kernels.choose_experts(logits, rule, expert_bias)
    load = kernels.load_of_experts(experts, 1, number).reshape(number)
    probs = kernels.routing_probabilities(logits, experts, rule)
    capacity = None if capacity_factor is None else get_capacity(len(logits) * topk, number, capacity_factor)
    if capacity is not None and capacity < len(logits):
        probs, experts = kernels.drop_over_capacity(probs, experts, capacity, drop_policy == "position")
    chosen = ops.cast(ops.expand_dims(experts, -1) == Tensor(np.arange(number, dtype=np.int32)), mindspore.float32)
    dense, routed = (ops.expand_dims(probs, -1) * chosen).sum(axis=1), chosen.sum(axis=1)
    if pad_to_capacity and capacity is not None:
        routed = _filled(routed, min(capacity, len(logits)))
    return dense, routed > 0, load


def _filled(routed: Tensor, capacity: int) -> Tensor:
    """The map [T, E], float32, in which each expert has its tokens and, up to its capacity, the first of the others."""
    order = np.argsort(-routed.asnumpy(), axis=0, kind="stable")[:capacity]
    filled = np.zeros(routed.shape, np.float32)
    np.put_along_axis(filled, order, 1.0, axis=0)
    return Tensor(filled)
