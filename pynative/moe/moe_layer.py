"""A mixture of experts in place of a layer's feed-forward block (Shazeer et al., 2017), with shared experts if any."""

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.moe.experts import experts_of
from pynative.moe.hot_experts import HotExperts
from pynative.moe.router import TokenIds, TopKRouter
from pynative.moe.token_dispatcher import Dispatched, MoETokenDispatcher
from pynative.parameter import make_parameter, type_of
from pynative.tape.autograd import Moved
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.tensor_parallel.recompute import NOTHING, run_part


class SharedExperts(ParallelMLP):
    """The experts that all tokens go to: mlp(x), with --moe-shared-expert-gate times sigmoid(x gate_weight^T)."""

    def __init__(
        self,
        config: ModelConfig,
        block: blocks.SharedExperts | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        block = blocks.SharedExperts.of(config) if block is None else block
        super().__init__(config, block, recomputed)
        self.gate_weight = None if block.gate is None else make_parameter(*block.gate)

    def construct(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, None: no bias is left to be added)."""
        if self.gate_weight is None:
            return self._biased(hidden_states), None
        hidden_states, weighing = kernels.fork(hidden_states)
        return kernels.sigmoid_gate(self._biased(hidden_states), weighing, self.gate_weight), None

    def _biased(self, hidden_states: Tensor) -> Tensor:
        output, bias = super().construct(hidden_states)
        return output if bias is None else kernels.bias_dropout_add(output, bias)


class MoELayer(nn.Cell):
    """A mixture of experts: a token goes to the experts that the router chose for it, on whichever ranks, unless the
    choice is dropped or is a zero expert. The output for a token is the sum of these experts' results times their
    weights, of the shared experts' result, and of the token itself times the weights of its zero experts.

    Args:
        submodules: the block of the layer, by default what the configuration says for a layer without a hash table.
        layer_number: global, from 1; by default 1.
        recomputed: the parts of this cell that are recomputed in the backward, by default none.
    """

    def __init__(
        self,
        config: ModelConfig,
        submodules: blocks.MoELayer | None = None,
        layer_number: int | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        self.recomputed = recomputed
        block = blocks.MoELayer.of(config) if submodules is None else submodules
        layer_number = 1 if layer_number is None else layer_number
        self.compute_dtype = type_of(config.compute_dtype)
        self.router = TopKRouter(config, layer_number, block.router)
        self.token_dispatcher = MoETokenDispatcher.of(config)
        self.experts = experts_of(config, block.experts, recomputed.within("experts"))
        self.hot_experts: HotExperts | None = None
        if config.moe_config.hot_expert_num:
            self.hot_experts = HotExperts(config, layer_number, self.experts, self.token_dispatcher)
            self.router.capacities = self.hot_experts.capacities
        shared = block.shared_experts
        inner = recomputed.within("shared_experts")
        self.shared_experts = None if shared is None else SharedExperts(config, shared, inner)
        self.zero_experts = config.moe_config.num_zero_experts
        self.count = block.experts.count
        self.overlaps_shared = config.moe_config.moe_shared_expert_overlap

    def construct(self, hidden_states: Tensor, tokens: TokenIds | None = None) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] -> ([s, b, h], None: no bias is left to be added); with sequence parallelism s is this rank's part
        of the sequence. tokens: the ids of all tensor-parallel ranks' tokens, for `TopKRouter`."""
        length, parts = hidden_states.shape[0], self.token_dispatcher.parts
        if length % parts:  # generation has sequences of any length
            rows = np.arange(length + -length % parts)
            row = tuple(hidden_states.shape[1:])
            filled = kernels.gather_rows(hidden_states, np.where(rows < length, rows, -1).astype(np.int32), row)
            if tokens is not None:
                tokens = tokens.filled(len(rows))
            return self(filled, tokens)[0][:length].contiguous(), None
        if self.shared_experts is None:
            return self._computed(*self._sent(hidden_states, tokens)), None
        hidden_states, for_all = kernels.fork(hidden_states)
        if self.overlaps_shared:
            on_its_way = self._sent(hidden_states, tokens)
            shared, _ = run_part(self, "shared_experts", self.shared_experts, for_all)
        else:
            shared, _ = run_part(self, "shared_experts", self.shared_experts, for_all)
            on_its_way = self._sent(hidden_states, tokens)
        return kernels.bias_dropout_add(shared, None, self._computed(*on_its_way)), None

    def _sent(self, hidden_states: Tensor, ids: TokenIds | None) -> tuple[Callable[[], Dispatched], Tensor | None]:
        """Route hidden states [s, b, h] and send the tokens: (a function that waits for the tokens that come to this
        rank, the result [s, b, h] of the choices of zero experts, None without these)."""
        tokens, scored = kernels.fork(hidden_states)
        routing, given_back = self.router(scored, ids), None
        tokens = kernels.cast(tokens, self.compute_dtype)
        if self.zero_experts:
            tokens, own = kernels.fork(tokens)
            routing, weights = routing.apart(self.count)
            given_back = _weighed(own, weights)
        return self.token_dispatcher.send(tokens, routing), given_back

    def _computed(self, on_its_way: Callable[[], Dispatched], given_back: Tensor | None) -> Tensor:
        """The experts' results for the tokens that came, sent back and combined, plus `given_back`: [s, b, h]."""
        dispatched = on_its_way()
        output, _ = self.experts(dispatched.tokens, dispatched.counts, dispatched.probs)
        combined = self.token_dispatcher.combine(output, dispatched)
        return combined if given_back is None else kernels.bias_dropout_add(given_back, None, combined)


def _weighed(x: Tensor, weights: Tensor) -> Tensor:
    """Each token of x [s, b, h] times its weight, float32 [s b]; on the tape."""
    shape = x.shape
    rows = Moved.apply(x, lambda x: x.reshape(-1, shape[-1]), lambda gradient: gradient.reshape(shape))
    weighed = kernels.weighted_activation(rows, weights, "identity")
    return Moved.apply(weighed, lambda x: x.reshape(shape), lambda gradient: gradient.reshape(-1, shape[-1]))
