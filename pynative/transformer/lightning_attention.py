"""Lightning attention (MiniMax-01, 2025), heads cut over ranks.

s sequence, b batch, h hidden, t tensor-parallel, c context-parallel size; n heads, d their size.
"""

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, parallel_state
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.recompute import NOTHING, run_part
from pynative.transformer.norm import norm_cell
from pynative.transformer.recurrence import RecurrentMixer, check_no_mask, recurrent


class LightningAttention(RecurrentMixer):
    """in_proj -> silu of queries, keys and values -> recurrence -> norm over all heads -> times sigmoid(gate) ->
    out_proj.

    With context parallelism over c ranks a rank has 1/c of its tensor-parallel rank's heads, of whole sequences, for
    silu and recurrence alone: the norm wants all heads of a token.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        block: blocks.LightningAttention,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        self.in_proj = ColumnParallelLinear.of(block.in_proj, config=config)
        self.norm = norm_cell(block.norm, config)
        self.out_proj = RowParallelLinear.of(block.out_proj, config=config)
        self.set_up(block, layer_number, recomputed)
        self.heads = block.recurrence.heads // self.sharing
        self.log_decays = self._own(np.array(block.log_decays, np.float32))

    def _own(self, of_heads: Array) -> Array:
        """The entries for this rank's heads in the recurrence, of an array [n] with one for each head of the layer."""
        rank = parallel_state.get_tensor_model_parallel_rank() * self.exchange.group.size + self.exchange.group.rank
        return of_heads[rank * self.heads : (rank + 1) * self.heads]

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        check_no_mask(attention_mask, document_starts)
        rows, _ = run_part(self, "in_proj", self.in_proj, hidden_states)
        mixed, gate = kernels.split_features(rows, (sum(self.mixed), self.widths[-1]))
        out = self.exchange.leave(run_part(self, "mixing", self._mix, self.exchange.enter(mixed, self.mixed)))
        normed = self.norm(kernels.as_heads(out, out.shape[-1] // self.recurrence.value_size))
        return run_part(self, "out_proj", self.out_proj, kernels.gate(normed.reshape(*out.shape), gate, "sigmoid"))

    def _mix(self, rows: Tensor) -> Tensor:
        """Fused rows [s, b, 3 n d / t c] of whole sequences -> the recurrence's output [s, b, n d / t c]."""
        width = rows.shape[-1] // 3
        parts = kernels.split_features(kernels.bias_activation(rows, None, "silu"), (width,) * 3)
        q, k, v = (kernels.as_heads(part, self.heads) for part in parts)
        log_decay = from_numpy(np.broadcast_to(self.log_decays, (*rows.shape[:2], self.heads)).copy())
        out = recurrent(self.layer_number, q, k, v, log_decay, None, self.recurrence.form)
        return out.reshape(*rows.shape[:2], width)
