"""What an Ascend has operators of its own for, in front of `ops`; `fused.py` has those that flags switch on."""

from pynative.kernels.ascend import always, attention_block, grouped_matmul
from pynative.kernels.contract.table import table

OPERATORS = table(
    always.layer_norm,
    always.bias_activation,
    always.weighted_activation,
    always.adam_,
    attention_block.attention_block,
    attention_block.attention_block_gradient,
    grouped_matmul.grouped_linear_forward,
    grouped_matmul.grouped_linear_input_gradient,
    grouped_matmul.grouped_linear_weight_gradient,
)
