# ruff: noqa: F401 - the names are what `pynative.kernels` looks up here.
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
from pynative.kernels.host.pieces import piece, place_columns, sequence_first, take_columns
from pynative.kernels.host.residual import bias_dropout_add, dropout, fork
from pynative.kernels.host.rotary import rotary, split_qkv
from pynative.kernels.host.threads import keep_freed_memory, set_threads


def prepare(threads: int) -> None:
    """Set the process up: `threads` threads in all, BLAS with one, freed memory kept for the next activation."""
    set_threads(threads)
    keep_freed_memory()
