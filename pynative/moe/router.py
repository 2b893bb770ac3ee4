"""The router of a mixture of experts (Shazeer et al., 2017): which experts each token goes to, with which weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.config.moe import SPARSE_MIXER
from parallel_core.moe.routing import RoutingRule, get_capacity
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import TOKENS_BEYOND, TOKENS_CHOSEN, TOKENS_ROUTED
from pynative import kernels, parallel_state
from pynative.key_value_cache import is_generating
from pynative.moe import noise
from pynative.moe.aux_loss import RouterLosses
from pynative.moe.routing import Routing
from pynative.parameter import make_parameter, type_of
from pynative.step_figures import current
from pynative.tensor_parallel.linear import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary

ROUTER_DTYPES = {"fp32": "float32", "fp64": "float64"}


class TopKRouter(nn.Cell):
    """Scores of x W^T, the best k experts by them, and the weights of these.

    W [E, h] is whole on every rank. Where the sequence is cut between tensor-parallel regions each rank routes its own
    tokens. `layer_number` is global and starts at 1.
    """

    def __init__(self, config: ModelConfig, layer_number: int = 1) -> None:
        super().__init__()
        self.moe, self.layer_number = config.moe_config, layer_number
        self.rule = RoutingRule.of(self.moe)
        block = blocks.Router.of(config)
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.weight, self.bias = parameters["weight"], parameters.get("bias")
        untrained = {name: make_parameter(*spec) for name, spec in block.untrained().items()}
        self.expert_bias = untrained.get("expert_bias")
        self.moves_bias = not config.lora_config.use_lora
        """Beside adapters it stays, as all of the model does whose adapters they are."""
        for parameter in untrained.values():
            parameter.requires_grad = False
        self.outside = Boundary.of(config)
        self.copies = 1 if self.outside.cuts_sequence else parallel_state.get_tensor_model_parallel_world_size()
        self.dtype = self.moe.moe_router_dtype and type_of(ROUTER_DTYPES[self.moe.moe_router_dtype])
        sharing = "tp-cp" if self.outside.cuts_sequence else "cp"
        self.capacities: Callable[[int], Array] | None = None
        """From the capacity to that of each expert, where they differ."""
        self.losses = RouterLosses(config, layer_number, sharing, self.copies)

    def construct(self, hidden_states: Tensor) -> Routing:
        """[s, b, h] -> the routing of its s b tokens; `dense` gives it in Megatron's form."""
        logits = self.gating(hidden_states)
        probs, experts = self._sampled(logits) if SPARSE_MIXER in self.moe.balancing else self._best(logits)
        self._report((TOKENS_CHOSEN, TOKENS_BEYOND), experts)
        capacity = self._capacity(experts.shape[0])
        if capacity is not None and np.min(capacity) < experts.shape[0]:
            by_position = self.moe.moe_token_drop_policy == "position"
            probs, experts = kernels.drop_over_capacity(probs, experts, capacity, by_position)
        self._report((TOKENS_ROUTED,), experts)
        return Routing(probs, experts, capacity if self.moe.moe_pad_expert_input_to_capacity else None)

    def _capacity(self, tokens: int) -> Any:
        """How many of this rank's tokens an expert takes, or each [E]; None: all."""
        factor = self.moe.moe_expert_capacity_factor
        if factor is None or is_generating():
            return None
        capacity = get_capacity(tokens * self.rule.topk, self.weight.shape[0], factor)
        return capacity if self.capacities is None else self.capacities(capacity)

    def gating(self, hidden_states: Tensor) -> Tensor:
        """[s, b, h] -> logits [s, b, E]."""
        epsilon, positions = self.moe.moe_input_jitter_eps, self.outside.positions(hidden_states.shape[0])
        if epsilon and self.training and SPARSE_MIXER not in self.moe.balancing:
            hidden_states = noise.jitter(hidden_states, epsilon, self.layer_number, positions)
        if self.dtype is not None:
            hidden_states = kernels.cast(hidden_states, self.dtype)
        inside = self.outside.inside()
        logits = linear_with_grad_accumulation_and_async_allreduce(hidden_states, self.weight, self.bias, inside)
        if self.moe.moe_router_force_load_balancing:
            return noise.random_logits(logits, self.layer_number, positions)
        return logits

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        balanced = self.rule.sinkhorn and self.training
        bias = None if self.rule.sinkhorn else self.expert_bias
        experts = kernels.choose_experts(logits, self.rule, bias, balanced)
        if self.training:
            logits = self.losses(logits, experts)
        return kernels.routing_probabilities(logits, experts, self.rule), experts

    def _sampled(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        positions = self.outside.positions(logits.shape[0])
        numbers = noise.draws(logits.shape, self.layer_number, positions) if self.training else None
        if self.training:
            logits = self.losses(logits)
        return kernels.sample_experts(logits, self.moe.sampled_within, numbers)

    def _report(self, names: tuple[str, ...], experts: Tensor) -> None:
        figures = current()
        if figures is not None:
            load = kernels.load_of_experts(experts, 1, self.weight.shape[0])
            for name in names:
                figures.add(name, load, self.layer_number, share=1.0 / self.copies)
