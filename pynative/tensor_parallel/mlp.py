"""The dense feed-forward block of a layer: h -> f -> h with an activation between, or a gated one."""

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.recompute import NOTHING, keep_collectives, run_part


class ParallelMLP(nn.Cell):
    """linear_fc2(activation(linear_fc1(x))), with linear_fc1 cut by columns and linear_fc2 by rows; if gated, the rows
    of linear_fc1's weight are [gate; up]."""

    def __init__(
        self, config: ModelConfig, block: blocks.MLP | None = None, recomputed: CellRecompute = NOTHING
    ) -> None:
        super().__init__()
        self.recomputed = recomputed
        block = blocks.MLP.of(config) if block is None else block
        self.operator = block.activation.operator
        self.linear_fc1 = ColumnParallelLinear.of(block.linear_fc1, config=config, skip_bias_add=True)
        self.linear_fc2 = RowParallelLinear.of(block.linear_fc2, config=config)
        keep_collectives(self)

    def construct(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, the bias [h] still to be added or
        None)."""
        return self.linear_fc2(run_part(self, "linear_fc1", self._expand, hidden_states))

    def _expand(self, hidden_states: Tensor) -> Tensor:
        """[s, b, h] -> [s, b, f/t], activated."""
        return run_part(self, "activation", self._activate, *self.linear_fc1(hidden_states))

    def _activate(self, intermediate: Tensor, bias: Tensor | None) -> Tensor:
        """[s, b, f/t] (gated: [s, b, 2 f/t]) and a bias to be added before -> [s, b, f/t]."""
        return kernels.bias_activation(intermediate, bias, self.operator)
