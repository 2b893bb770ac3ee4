"""What an Ascend has operators of its own for, in front of `ops`; `fused.py` has those that flags switch on."""

from pynative.kernels.ascend.always import adamw_, bias_activation, layer_norm
from pynative.kernels.ascend.attention_block import attention_block, attention_block_gradient
from pynative.kernels.contract.table import table

OPERATORS = table(layer_norm, bias_activation, attention_block, attention_block_gradient, adamw_)
