"""What an Ascend has operators of its own for, in front of `ops`; `fused.py` has those that flags switch on."""

from pynative.kernels.ascend import always, attention_block
from pynative.kernels.contract.table import table

OPERATORS = table(
    always.layer_norm,
    always.bias_activation,
    always.adam_,
    attention_block.attention_block,
    attention_block.attention_block_gradient,
)
