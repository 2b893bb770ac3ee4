"""The operators that a GPT model is made of: what every stack of implementations has, by these names and arguments.

Letters in shapes: s sequence, b batch, h hidden, n heads, g key/value groups, d size of a query's and a key's head,
e of a value's, f feed-forward size, i inputs, o outputs, v vocabulary, t tensor-parallel size; `...` any leading axes.
Activations are [s, b, ...] tensors of float32, float16 or bfloat16. Operators are recorded on the tape unless said
otherwise; gradients of parameters go where `autograd.add_weight_gradient` puts them. Dropout keys are tuples of
non-negative integers (`dropout.py`).

The functions here are signatures: their text is the specification, the bodies are those of `host`, `ops` and `ascend`.
"""

from pynative.kernels.contract import (
    attention,
    elementwise,
    exchange,
    flat_buffers,
    layer,
    linear,
    routing,
    rows,
    vocabulary,
)
from pynative.kernels.contract.table import Table, table

CONTRACT: Table = table(
    linear.linear_forward,
    linear.linear_input_gradient,
    linear.linear_weight_gradient,
    linear.bias_gradient,
    elementwise.cast,
    elementwise.scale,
    elementwise.soft_cap,
    layer.layer_norm,
    layer.rms_norm,
    layer.bias_activation,
    layer.split_features,
    layer.fork,
    layer.join_features,
    layer.bias_dropout_add,
    layer.dropout,
    attention.split_qkv,
    attention.rotary,
    attention.as_heads,
    attention.latent_keys_values,
    attention.attention,
    attention.attention_block,
    attention.attention_block_gradient,
    exchange.chunk,
    exchange.sequence_first,
    exchange.take_columns,
    exchange.place_columns,
    exchange.pack_heads,
    exchange.unpack_heads,
    rows.gather_rows,
    rows.sum_rows,
    vocabulary.embedding,
    vocabulary.softmax_statistics,
    vocabulary.cross_entropy_addends,
    vocabulary.cross_entropy_loss,
    vocabulary.cross_entropy_gradient,
    vocabulary.masked_mean,
    routing.choose_experts,
    routing.routing_probabilities,
    routing.sample_experts,
    routing.drop_over_capacity,
    routing.load_of_experts,
    routing.router_statistics,
    routing.with_router_losses,
    flat_buffers.adam_,
    flat_buffers.sgd_,
    flat_buffers.combine_,
    flat_buffers.clamp_,
    flat_buffers.squared_norm,
    flat_buffers.add_,
    flat_buffers.scale_,
    flat_buffers.fill_,
)
