"""Operators for which an Ascend has fused kernels, which go before those of `ops`: `OPERATORS` always, `forms` where a
flag asks for the fused form."""

from pynative.kernels.ascend import always, attention_block, fused, grouped_matmul
from pynative.kernels.contract import bodies_in
from pynative.kernels.contract.table import Table

OPERATORS = bodies_in(always, attention_block, grouped_matmul)


def forms(input_layout: str) -> Table:
    """The fused forms by operator's name; input_layout: the layout that the attention kernel is to read, as for
    `fused.flash_attention`."""
    return {"attention": fused.flash_attention(input_layout), **bodies_in(fused)}
