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
from pynative.kernels.ops.pieces import piece, sequence_first
from pynative.kernels.ops.residual import bias_dropout_add, dropout, fork
from pynative.kernels.ops.rotary import rotary, split_qkv

__all__ = [
    "adamw_", "add_", "attention", "attention_block", "attention_block_gradient", "bias_activation", "bias_dropout_add",
    "bias_gradient", "cross_entropy_addends", "cross_entropy_gradient", "cross_entropy_loss", "dropout", "embedding",
    "fill_", "fork", "is_finite", "join_kv", "layer_norm", "linear_forward", "linear_input_gradient",
    "linear_weight_gradient", "masked_mean", "pack_heads", "piece", "prepare", "rms_norm", "rotary", "scale_",
    "sequence_first", "sgd_", "softmax_statistics", "split_kv", "split_qkv", "squared_norm", "unpack_heads",
]  # fmt: skip


def prepare(threads: int) -> None:
    """MindSpore's operators bring their own threads."""
