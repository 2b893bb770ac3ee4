"""Operators that an Ascend has fused kernels for, in front of `ops`, and those that flags switch on."""

from pynative.kernels.ascend import always, attention_block, fused, grouped_matmul
from pynative.kernels.contract import bodies_in
from pynative.kernels.contract.table import Table

OPERATORS = bodies_in(always, attention_block, grouped_matmul)


def forms(input_layout: str) -> Table:
    """The fused forms by name; input_layout: the layout that the attention kernel is to read."""
    return {"attention": fused.flash_attention(input_layout), **bodies_in(fused)}
