"""The feed-forward half of a layer: h -> f -> h with an activation between, or a gated one."""

import math

from mindspore import Tensor, nn

from parallel_core.initial_values import Normal
from pynative import kernels
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

GATED = frozenset({"swiglu"})


def activation_name(config) -> str:
    """The kernel's name of the config's activation: gelu is the tanh form when fused with its bias, as in Megatron."""
    if config.hidden_act == "gelu":
        return "gelu_tanh" if config.bias_gelu_fusion and config.mlp_has_bias else "gelu_erf"
    return config.hidden_act


def scaled_normal(config) -> Normal:
    """Initial values of the projections back into the residual stream: std / sqrt(2 x layers) (GPT-2, 2019)."""
    return Normal(config.init_method_std / math.sqrt(2.0 * config.num_layers))


class ParallelMLP(nn.Cell):
    """linear_fc2(activation(linear_fc1(x))), cut by columns then by rows; with swiglu linear_fc1 holds [gate; up]."""

    def __init__(self, config) -> None:
        super().__init__()
        self.activation = activation_name(config)
        parts = 2 if config.hidden_act in GATED else 1
        self.linear_fc1 = ColumnParallelLinear(
            config.hidden_size,
            config.ffn_hidden_size * parts,
            config=config,
            bias=config.mlp_has_bias,
            stride=parts,
            skip_bias_add=True,
        )
        self.linear_fc2 = RowParallelLinear(
            config.ffn_hidden_size,
            config.hidden_size,
            config=config,
            init_method=scaled_normal(config),
            bias=config.mlp_has_bias,
        )

    def construct(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] -> ([s, b, h], the bias still to be added)."""
        intermediate, bias = self.linear_fc1(hidden_states)
        return self.linear_fc2(kernels.bias_activation(intermediate, bias, self.activation))
