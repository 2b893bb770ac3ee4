"""The experts that every token passes through (DeepSeekMoE, Dai et al., 2024), together one feed-forward block."""

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute import CellRecompute
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.tensor_parallel.recompute import NOTHING


class SharedExperts(ParallelMLP):
    """mlp(x), with --moe-shared-expert-gate times sigmoid(x gate_weight^T)."""

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
        """[s, b, h] -> ([s, b, h], the bias still to be added: none)."""
        if self.gate_weight is None:
            return self._biased(hidden_states), None
        hidden_states, weighing = kernels.fork(hidden_states)
        return kernels.sigmoid_gate(self._biased(hidden_states), weighing, self.gate_weight), None

    def _biased(self, hidden_states: Tensor) -> Tensor:
        output, bias = super().construct(hidden_states)
        return output if bias is None else kernels.bias_dropout_add(output, bias)
