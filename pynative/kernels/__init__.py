# ruff: noqa: F401 - the names are what the engine calls as `kernels.linear_forward(...)`.
"""Kernels: the operators that a GPT model is made of, one name each, several implementations.

`host` computes with numpy inside `autograd.Function` (the default on a CPU), `ops` with MindSpore operators, `ascend`
with an Ascend's fused ones in front of `ops`. `use` selects for the whole process, like a device: it is a property of
the hardware, not of a model. What an operator is: `contract`. Which function serves it: `selection.py`.

`kernels.linear_forward` is the selected implementation itself: a call costs what a call of a function costs. Names are
therefore looked up in this module when they are called; `from pynative.kernels import linear_forward` would keep one
implementation forever.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore

from parallel_core.config.fused import NOTHING_FUSED, FusedOperators
from pynative.kernels import selection
from pynative.kernels.contract import CONTRACT
from pynative.kernels.contract.attention import (
    as_heads,
    attention,
    attention_block,
    attention_block_gradient,
    latent_keys_values,
    rotary,
    split_qkv,
)
from pynative.kernels.contract.cache import cached_attention, write_slots
from pynative.kernels.contract.elementwise import cast, scale, soft_cap
from pynative.kernels.contract.exchange import (
    chunk,
    pack_heads,
    place_columns,
    sequence_first,
    take_columns,
    unpack_heads,
)
from pynative.kernels.contract.experts import (
    add_grouped_bias,
    grouped_linear_forward,
    grouped_linear_input_gradient,
    grouped_linear_weight_gradient,
    join_rows,
    sigmoid_gate,
    split_rows,
    weighted_activation,
)
from pynative.kernels.contract.flat_buffers import (
    adam_,
    add_,
    clamp_,
    combine_,
    fill_,
    scale_,
    squared_norm,
    update_,
)
from pynative.kernels.contract.layer import (
    bias_activation,
    bias_dropout_add,
    dropout,
    fork,
    join_features,
    layer_norm,
    rms_norm,
    split_features,
)
from pynative.kernels.contract.linear import (
    bias_gradient,
    linear_forward,
    linear_input_gradient,
    linear_weight_gradient,
)
from pynative.kernels.contract.routing import (
    choose_experts,
    drop_over_capacity,
    load_of_experts,
    router_statistics,
    routing_probabilities,
    sample_experts,
    with_router_losses,
)
from pynative.kernels.contract.rows import gather_rows, sum_rows
from pynative.kernels.contract.sparse import attention_target, choose_keys, indexer_gradient, sparse_attention
from pynative.kernels.contract.vocabulary import (
    cross_entropy_addends,
    cross_entropy_gradient,
    cross_entropy_loss,
    embedding,
    masked_mean,
    softmax_statistics,
)
from pynative.kernels.host import process

_selected: str


def use(implementation: str | None = None, threads: int | None = None, fused: FusedOperators = NOTHING_FUSED) -> None:
    """Select the implementation for this process and set it up for that; call it before any operator.

    Without a call operators are the host's, on one thread, and the process's BLAS and memory are as they were.

    implementation: "host", "ops", or None for the device's own: host on a CPU, ops on an Ascend.
    threads: CPU threads that host kernels use, the calling one included (None: 1).
    fused: operators that are to have their fused form, where the implementation has one.
    """
    device = mindspore.get_context("device_target")
    _select(selection.implementation_on(device, implementation), device, fused)
    process.prepare(1 if threads is None else threads)


@contextmanager
def on_host() -> Iterator[None]:
    """Within the block operators are the host's, for tensors of the host's memory, whichever are selected."""
    selected = {name: globals()[name] for name in CONTRACT}
    globals().update(selection.merged(selection.STACKS["host", "CPU"].tables(NOTHING_FUSED)))
    try:
        yield
    finally:
        globals().update(selected)


def active() -> str:
    """Name of the implementation in use."""
    return _selected


def _select(implementation: str, device: str, fused: FusedOperators) -> None:
    global _selected
    stack = selection.STACKS[implementation, device]
    globals().update(selection.merged(stack.tables(fused)))
    _selected = implementation


_select("host", "CPU", NOTHING_FUSED)
