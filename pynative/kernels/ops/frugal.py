"""The form of attention that keeps little for its backward, of MindSpore operators: what a CPU has for a fused one.

The other operators that an Ascend has fused kernels of keep no more than these would in their composed form.
"""

from pynative.kernels.contract.table import Table, table
from pynative.kernels.ops import widened
from pynative.kernels.ops.blocked_attention import attention


def forms(input_layout: str) -> Table:
    """The frugal form. The layout is a fused attention operator's, which a CPU has not."""
    return widened.of(table(attention))
