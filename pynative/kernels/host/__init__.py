"""The operators on a CPU: numpy inside `autograd.Function`, blocked for the cache, over threads of our own."""

from pynative.kernels.host.activation import bias_activation
from pynative.kernels.host.attention import attention, attention_block, attention_block_gradient
from pynative.kernels.host.cross_entropy import (
    cross_entropy_addends,
    cross_entropy_gradient,
    cross_entropy_loss,
    masked_mean,
    softmax_statistics,
)
from pynative.kernels.host.embedding import embedding
from pynative.kernels.host.exchange import join_kv, pack_heads, split_kv, unpack_heads
from pynative.kernels.host.linear import bias_gradient, linear_forward, linear_input_gradient, linear_weight_gradient
from pynative.kernels.host.norm import layer_norm, rms_norm
from pynative.kernels.host.optimizer import adamw_, add_, fill_, is_finite, scale_, sgd_, squared_norm
from pynative.kernels.host.pieces import piece, sequence_first
from pynative.kernels.host.residual import bias_dropout_add, dropout, fork
from pynative.kernels.host.rotary import rotary, split_qkv
from pynative.kernels.host.threads import keep_freed_memory, set_threads

__all__ = [
    "adamw_", "add_", "attention", "attention_block", "attention_block_gradient", "bias_activation", "bias_dropout_add",
    "bias_gradient", "cross_entropy_addends", "cross_entropy_gradient", "cross_entropy_loss", "dropout", "embedding",
    "fill_", "fork", "is_finite", "join_kv", "layer_norm", "linear_forward", "linear_input_gradient",
    "linear_weight_gradient", "masked_mean", "pack_heads", "piece", "prepare", "rms_norm", "rotary", "scale_",
    "sequence_first", "sgd_", "softmax_statistics", "split_kv", "split_qkv", "squared_norm", "unpack_heads",
]  # fmt: skip


def prepare(threads: int) -> None:
    """Set the process up: `threads` threads in all, BLAS with one, freed memory kept for the next activation."""
    set_threads(threads)
    keep_freed_memory()
