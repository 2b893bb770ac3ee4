"""Gated delta net (Yang et al., "Gated Delta Networks", 2024), heads cut over ranks.

s sequence, b batch, h hidden, t tensor-parallel, c context-parallel size; m heads of queries and keys, of size d, n of
values, of size e.
"""

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.recompute import NOTHING
from pynative.transformer.norm import norm_cell
from pynative.transformer.recurrence import RecurrentMixer, ShortConvolution, convolved, recurrent


class GatedDeltaNet(RecurrentMixer):
    """in_proj -> silu(conv1d) of queries, keys, values -> recurrence -> out_norm -> times silu(z) -> out_proj;
    z: a part of in_proj's output.

    With context parallelism over c ranks a rank has 1/c of its tensor-parallel rank's heads, of whole sequences,
    between the two linears.
    """

    def __init__(
        self, config: ModelConfig, layer_number: int, block: blocks.GatedDeltaNet, recomputed: CellRecompute = NOTHING
    ) -> None:
        super().__init__()
        for name in ("dt_bias", "A_log"):
            setattr(self, name, make_parameter(*block.parameters()[name]))
        self.in_proj = ColumnParallelLinear.of(block.in_proj, config=config)
        self.conv1d = ShortConvolution(block.conv1d)
        self.out_norm = norm_cell(block.out_norm, config)
        self.out_proj = RowParallelLinear.of(block.out_proj, config=config)
        self.set_up(block, layer_number, recomputed)

    def _mix(self, rows: Tensor) -> Tensor:
        """Rows of in_proj [s, b, (2 m d + 2 n e + 2 n) / t c], of whole sequences -> input of out_proj [s, b, n e / t
        c]."""
        size, core = self.exchange.group.size, self.recurrence
        *_, value, gate, rates, decays = (width // size for width in self.widths)
        mixed = tuple(width // size for width in self.mixed)
        heads = rates
        qkv, z, b, a = kernels.split_features(rows, (sum(mixed), gate, rates, decays))
        weight = self.exchange.share(self.conv1d.weight, self.mixed)
        q, k, v = kernels.split_features(convolved(self.layer_number, qkv, weight, None), mixed)
        keys = heads * core.keys // core.heads
        q, k, v = kernels.as_heads(q, keys), kernels.as_heads(k, keys), kernels.as_heads(v, heads)
        a_log, dt_bias = (self.exchange.share(each, (self.widths[-1],)) for each in (self.A_log, self.dt_bias))
        log_decay, rate = kernels.recurrent_gates(a, b, a_log, dt_bias)
        out = self.out_norm(recurrent(self.layer_number, q, k, v, log_decay, rate, core.form))
        return kernels.gate(out.reshape(*out.shape[:2], value), z, "silu")
