"""How a router chooses experts and weighs what they give."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config import MoEConfig

EPSILON = 1e-20
"""Added to sums that scores are divided by."""


@dataclass(frozen=True, kw_only=True)
class RoutingRule:
    """The settings of one router."""

    topk: int
    """Experts of a token, k."""
    sigmoid: bool = False
    """Scores are sigmoids of the logits; else their softmax."""
    pre_softmax: bool = False
    """The softmax is over all experts; else over the chosen ones."""
    normalize: bool = False
    """The chosen experts' scores are divided by their sum."""
    scale: float = 1.0
    """They are multiplied by this."""
    groups: int = 1
    """Groups of neighbouring experts."""
    group_topk: int | None = None
    """Groups that a token's experts may come from; None: all."""
    group_score_topk: int | None = None
    """Best experts of a group by the sum of whose scores it is chosen; None: k // group_topk."""
    sinkhorn: bool = False
    """Experts are chosen of balanced scores; the weights are those of unbalanced ones, over all experts."""

    @classmethod
    def of(cls, config: MoEConfig) -> RoutingRule:
        """The configuration's. With sigmoid scores several chosen ones are divided by their sum, always."""
        sinkhorn = "sinkhorn" in config.balancing
        topk, sigmoid = config.moe_router_topk, config.moe_router_score_function == "sigmoid"
        if sinkhorn:
            return cls(topk=topk, sigmoid=topk == 1, pre_softmax=True, sinkhorn=True)
        return cls(
            topk=topk,
            sigmoid=sigmoid,
            pre_softmax=config.moe_router_pre_softmax,
            normalize=topk > 1 and (sigmoid or (config.moe_router_norm_topk_prob and config.moe_router_pre_softmax)),
            scale=config.moe_router_topk_scaling_factor or 1.0,
            groups=config.moe_router_num_groups or 1,
            group_topk=config.moe_router_group_topk,
            group_score_topk=config.moe_router_group_score_topk,
        )

    @property
    def counted_of_group(self) -> int:
        """Experts of a group by which it is chosen, where groups are limited."""
        assert self.group_topk is not None
        return self.group_score_topk or self.topk // self.group_topk

    @property
    def scores_all(self) -> bool:
        """Whether the chosen experts' scores are those among all experts."""
        return self.sigmoid or self.pre_softmax
