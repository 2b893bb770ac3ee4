"""Connections that read and write several residual streams (mHC, Xie et al., 2026).

s sequence, b batch, h hidden, n streams, beside each other.
"""

from mindspore import Tensor, nn

from parallel_core import blocks
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tape.layer_events import Observable


class _Weights(nn.Cell):
    """The cell `hc_fn`, which has a weight [m, n h] alone: the linear from a token's streams to the m weights with
    which they are read and written."""


class HyperConnection(Observable):
    """The weights with which one sublayer reads and writes the streams; or those of a head, which only reads: it merges
    the streams into one behind layers."""

    def __init__(self, block: blocks.HyperConnection) -> None:
        super().__init__()
        self.rule = block.rule
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.hc_fn = _Weights()
        self.hc_fn.weight = parameters["hc_fn.weight"]
        self.hc_base, self.hc_scale = parameters["hc_base"], parameters["hc_scale"]

    def construct(self, streams: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """[s, b, n h] -> (the sublayer's input [s, b, h], float32 [s, b, n + n n]: each stream's weight for the
        sublayer's output, and the weights by which streams become the new ones); of a head one stream [s, b, h]. s is
        with sequence parallelism s/t."""
        read = kernels.read_streams if self.rule.iterations else kernels.collapse_streams
        return read(streams, self.hc_fn.weight, self.hc_base, self.hc_scale, self.rule)


def stream_head_of(block: blocks.HyperConnection | None) -> HyperConnection | None:
    """The cell that merges residual streams behind layers, of a head's block; None for None."""
    return None if block is None else HyperConnection(block)
