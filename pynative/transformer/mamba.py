"""A state space layer: Mamba-2 ("Transformers are SSMs", Dao and Gu, 2024), heads and groups cut over ranks.

s sequence, b batch, h hidden, t tensor-parallel, c context-parallel size; n heads, e their size, g groups of heads, d
size of the state.
"""

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.recompute import NOTHING
from pynative.transformer.recurrence import RecurrentMixer, ShortConvolution, convolved, recurrent


class GroupedNorm(nn.Cell):
    """The weight of an RMS norm by groups of neighbouring features, [features of this tensor-parallel rank];
    `MambaMixer` computes the norm."""

    def __init__(self, block: blocks.GroupedNorm) -> None:
        super().__init__()
        self.weight = make_parameter(*block.parameters()["weight"])


class MambaMixer(RecurrentMixer):
    """in_proj, its parts times factors, if any -> silu(conv1d) of values, keys and queries -> recurrence, plus D x
    values -> times silu(z) -> norm by groups, if any -> out_proj. z: a part of in_proj's output; D: a parameter, one
    number a head.

    With context parallelism over c ranks a rank has 1/c of its tensor-parallel rank's groups, of whole sequences,
    between the two linears.
    """

    def __init__(
        self, config: ModelConfig, layer_number: int, block: blocks.MambaMixer, recomputed: CellRecompute = NOTHING
    ) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        for name in ("dt_bias", "A_log", "D"):
            setattr(self, name, make_parameter(*block.parameters()[name]))
        self.in_proj = ColumnParallelLinear.of(block.in_proj, config=config)
        self.conv1d = ShortConvolution(block.conv1d)
        self.norm = None if block.norm is None else GroupedNorm(block.norm)
        self.out_proj = RowParallelLinear.of(block.out_proj, config=config)
        self.set_up(block, layer_number, recomputed)
        self.groups = block.recurrence.keys // self.sharing
        factors = None if block.multipliers is None else np.repeat(np.array(block.multipliers, np.float32), self.widths)
        self.multipliers = factors

    def _entered(self, rows: Tensor) -> Tensor:
        return super()._entered(rows if self.multipliers is None else kernels.scale_features(rows, self.multipliers))

    def _mix(self, rows: Tensor) -> Tensor:
        """Rows of in_proj [s, b, (2 n e + 2 g d + n) / t c], of whole sequences -> input of out_proj [s, b, n e / t
        c]."""
        size, share = self.exchange.group.size, self.exchange.share
        inner, *_, heads = (width // size for width in self.widths)
        mixed = tuple(width // size for width in self.mixed)
        z, inputs, steps = kernels.split_features(rows, (inner, sum(mixed), heads))
        weight, bias = share(self.conv1d.weight, self.mixed), self.conv1d.bias
        bias = None if bias is None else share(bias, self.mixed)
        x, b, c = kernels.split_features(convolved(self.layer_number, inputs, weight, bias), mixed)
        values = kernels.as_heads(x, heads)
        a_log, dt_bias, skip = (share(each, (self.widths[-1],)) for each in (self.A_log, self.dt_bias, self.D))
        log_decay, rate = kernels.recurrent_gates(steps, None, a_log, dt_bias)
        for_state, for_skip = kernels.fork(values)
        keys, queries = kernels.as_heads(b, self.groups), kernels.as_heads(c, self.groups)
        out = recurrent(self.layer_number, queries, keys, for_state, log_decay, rate, self.recurrence.form)
        out = kernels.add_scaled_heads(out, for_skip, skip)
        gated = kernels.gate(out.reshape(*out.shape[:2], inner), z, "silu")
        if self.norm is None:
            return gated
        return kernels.grouped_rms_norm(gated, share(self.norm.weight, self.widths[:1]), self.groups, self.epsilon)
