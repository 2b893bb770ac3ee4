"""A mixture of experts in the place of a layer's feed-forward block (Shazeer et al., 2017)."""

from __future__ import annotations

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from pynative import kernels
from pynative.moe.experts import experts_of
from pynative.moe.hot_experts import HotExperts
from pynative.moe.router import TopKRouter
from pynative.moe.shared_experts import SharedExperts
from pynative.moe.token_dispatcher import MoETokenDispatcher
from pynative.parameter import type_of


class MoELayer(nn.Cell):
    """Each token goes to the experts that its router chose, wherever they are; their weighed results are its sum.

    `layer_number` is global and starts at 1; `block` says what the layer has, by default what the configuration says.
    """

    def __init__(self, config: ModelConfig, layer_number: int = 1, block: blocks.MoELayer | None = None) -> None:
        super().__init__()
        block = blocks.MoELayer.of(config) if block is None else block
        self.compute_dtype = type_of(config.compute_dtype)
        self.router = TopKRouter(config, layer_number)
        self.token_dispatcher = MoETokenDispatcher.of(config)
        self.experts = experts_of(config, block.experts)
        self.hot_experts: HotExperts | None = None
        if config.moe_config.hot_expert_num:
            self.hot_experts = HotExperts(config, layer_number, self.experts, self.token_dispatcher)
            self.router.capacities = self.hot_experts.capacities
        self.shared_experts = None if block.shared_experts is None else SharedExperts(config, block.shared_experts)

    def construct(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] -> ([s, b, h], the bias still to be added: none)."""
        if self.shared_experts is None:
            return self.routed(hidden_states), None
        hidden_states, for_all = kernels.fork(hidden_states)
        shared, _ = self.shared_experts(for_all)
        return kernels.bias_dropout_add(shared, None, self.routed(hidden_states)), None

    def routed(self, hidden_states: Tensor) -> Tensor:
        """[s, b, h] -> [s, b, h]: route, dispatch, experts, combine."""
        tokens, scored = kernels.fork(hidden_states)
        routing = self.router(scored)
        dispatched = self.token_dispatcher.dispatch(kernels.cast(tokens, self.compute_dtype), routing)
        output = self.experts(dispatched.tokens, dispatched.probs, dispatched.counts)
        return self.token_dispatcher.combine(output, dispatched)
