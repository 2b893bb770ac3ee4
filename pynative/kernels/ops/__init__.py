"""The operators written with MindSpore's own, each of which has a CPU kernel and a gradient.

The tape differentiates them, so gradients of parameters arrive in `_grad` (`autograd.TapeGradients` moves them).
"""

from pynative.kernels.contract.table import table
from pynative.kernels.ops import (
    activation,
    attention,
    cross_entropy,
    embedding,
    exchange,
    linear,
    norm,
    optimizer,
    residual,
    rotary,
    slices,
)

OPERATORS = table(
    linear.linear_forward,
    linear.linear_input_gradient,
    linear.linear_weight_gradient,
    linear.bias_gradient,
    norm.layer_norm,
    norm.rms_norm,
    activation.bias_activation,
    residual.fork,
    residual.bias_dropout_add,
    residual.dropout,
    rotary.split_qkv,
    rotary.rotary,
    attention.attention,
    attention.attention_block,
    attention.attention_block_gradient,
    slices.chunk,
    slices.sequence_first,
    slices.take_columns,
    slices.place_columns,
    exchange.join_kv,
    exchange.split_kv,
    exchange.pack_heads,
    exchange.unpack_heads,
    embedding.embedding,
    cross_entropy.softmax_statistics,
    cross_entropy.cross_entropy_addends,
    cross_entropy.cross_entropy_loss,
    cross_entropy.cross_entropy_gradient,
    cross_entropy.masked_mean,
    optimizer.adamw_,
    optimizer.sgd_,
    optimizer.squared_norm,
    optimizer.add_,
    optimizer.fill_,
)
