# mypy: disable-error-code=empty-body
"""Contract of the operators of attention sinks (Xiao et al., 2023; gpt-oss, 2025): one more score for each head, which
takes part in the softmax of every query and has no value."""

from mindspore import Tensor

from pynative.kernels.block import Partial


def with_sinks(partial: Partial, sinks: Tensor, first: int = 0) -> Partial:
    """Attention over all of a query's keys, which may be overwritten, and its sinks beside them.

    sinks: [m]; those of the n heads stand from `first` on. Not recorded.
    """


def sinks_gradient(partial: Partial, sinks: Tensor, first: int, dout: Tensor) -> Tensor | None:
    """The gradient of the sinks [m], 0 for those of other heads, where `autograd.add_weight_gradient` puts it.

    It is the negative sum over rows of p (dout . out), p the sink's probability; partial: what `with_sinks` gave; dout
    [s, b, n * e]. That of queries, keys and values is `attention_block_gradient`'s with this partial.
    """
