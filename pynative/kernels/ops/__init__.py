# ruff: noqa: F401 - the names are what `pynative.kernels` looks up here.
"""The operators written with MindSpore's own, each of which has a CPU kernel and a gradient.

The tape differentiates them, so gradients of parameters arrive in `_grad` (`autograd.collect_gradients` moves them).
`fused.py` replaces some of them by an Ascend's fused operators.
"""

from pynative.kernels.ops.activation import bias_activation
from pynative.kernels.ops.attention import attention, attention_block, attention_block_gradient
from pynative.kernels.ops.embedding import embedding
from pynative.kernels.ops.exchange import join_kv, pack_heads, split_kv, unpack_heads
from pynative.kernels.ops.linear import bias_gradient, linear_forward, linear_input_gradient, linear_weight_gradient
from pynative.kernels.ops.loss import (
    cross_entropy_addends,
    cross_entropy_gradient,
    cross_entropy_loss,
    masked_mean,
    softmax_statistics,
)
from pynative.kernels.ops.norm import layer_norm, rms_norm
from pynative.kernels.ops.optimizer import adamw_, add_, fill_, is_finite, scale_, sgd_, squared_norm
from pynative.kernels.ops.pieces import piece, place_columns, sequence_first, take_columns
from pynative.kernels.ops.residual import bias_dropout_add, dropout, fork
from pynative.kernels.ops.rotary import rotary, split_qkv


def prepare(threads: int) -> None:
    """MindSpore's operators bring their own threads."""
