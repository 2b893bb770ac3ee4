"""Layers whose residual is n streams, which sublayers read and write with learnt weights (mHC, Xie et al., 2026)."""

from typing import Any

from mindspore import Tensor

from parallel_core import blocks
from pynative import kernels
from pynative.transformer.layer import ParallelTransformerLayer


class HyperConnectedTransformerLayer(ParallelTransformerLayer):
    """A layer over n streams of width h, [s, b, n h], with sequence parallelism [s/t, b, n h]: each sublayer reads a
    mixture of them by its connection, and writes to all."""

    def entered(self, branch: blocks.Branch, hidden_states: Tensor) -> tuple[Tensor, Any]:
        """(The branch's normed input [s, b, h], with sequence parallelism [s/t, b, h], (the streams, the weights with
        which the branch's output is written to the streams))."""
        assert branch.connection is not None
        read, streams = kernels.fork(hidden_states)
        collapsed, weights = getattr(self, branch.connection)(read)
        return self.normed(collapsed, branch.norm), (streams, weights)

    def joined(self, branch: blocks.Branch, result: tuple[Tensor, Tensor | None], residual: Any) -> Tensor:
        output, bias = result
        return kernels.write_streams(
            residual[0], output if bias is None else kernels.bias_dropout_add(output, bias), residual[1]
        )
