"""A mixture of experts in the place of a layer's feed-forward block: router, dispatch, experts, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parallel_core.blocks.dispatch import Dispatch
from parallel_core.blocks.experts import Experts, SharedExperts
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.router import Router
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.recompute.parts import Again, Part


@dataclass(frozen=True)
class MoELayer(Sublayer):
    """A mixture of experts: combine(experts(dispatch(x, router(x)))) + shared_experts(x), the latter if there are
    any."""

    router: Router
    dispatch: Dispatch
    experts: Experts
    shared_experts: SharedExperts | None

    called: ClassVar[str | None] = "moe"
    """The name by which users ask for its parts; "mlp", that of a dense layer's feed-forward block, does not mean
    it."""

    @property
    def reads_tokens(self) -> bool:
        return self.router.hashed_tokens is not None or self.router.replays

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed: the whole, the experts' activation and, if there are any, the shared
        experts."""
        activation, shared = "experts.activation", "shared_experts"
        parts = (
            Part("", holders=("router",), begins=True, flag="moe"),
            Part(activation, Again.OUTPUT, feeds=("experts.linear_fc2",), flag="moe_act"),
            Part(shared, holders=(f"{shared}.linear_fc1",), flag="shared_experts"),
        )
        return parts if self.shared_experts is not None else parts[:-1]

    @classmethod
    def of(cls, config: ModelConfig, number: int | None = None) -> MoELayer:
        """The mixture of the configuration's layer with this global number, from 0; None: of a layer whose experts are
        chosen by scores, not by a table of tokens."""
        has_shared = config.moe_config.moe_shared_expert_intermediate_size is not None
        return cls(
            Router.of(config, number),
            Dispatch.of(config),
            Experts.of(config),
            SharedExperts.of(config) if has_shared else None,
        )

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes that its parts keep for the backward. The input of shared experts and router counts once, at
        the router, unless the router converts it to another type (--moe-router-dtype) and keeps that copy, or is frozen
        and keeps none."""
        kept = super().kept_bytes(micro_batch)
        is_the_routers = self.shared_experts is not None and self.router.keeps_hidden_states
        return {**kept, "shared_experts.linear_fc1": 0} if is_the_routers else kept
