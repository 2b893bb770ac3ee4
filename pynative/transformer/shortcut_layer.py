"""A layer of two halves, with experts beside the second one (ScMoE, Cai et al., 2024; LongCat-Flash, 2025)."""

from typing import Any

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.recompute import run_part
from pynative.transformer.kinds import LayerSettings, cell_of
from pynative.transformer.layer import ParallelTransformerLayer


class ShortcutTransformerLayer(Observable):
    """second(first(x)) + shortcut(y), where y is the normed hidden states that the first half's dense block reads, and
    shortcut a MoELayer.

    Each half has a layer number of its own, for its dropout masks and its cached keys: the second half's is the first's
    plus the model's number of layers.
    """

    def __init__(self, block: blocks.ShortcutLayer, given: LayerSettings) -> None:
        super().__init__()
        config, number, attn_mask_type = given.of_layer
        self.layer_number, self.recomputed = number, given.recomputed
        first, second = (given.within(name).recomputed for name in ("first", "second"))
        self.first = ParallelTransformerLayer(config, number, attn_mask_type, block.first, first)
        self.second = ParallelTransformerLayer(config, config.num_layers + number, attn_mask_type, block.second, second)
        self.shortcut = cell_of(block.shortcut, given.within("shortcut"))

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
        *shared: Any,
    ) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> the same shape. Arguments are those of
        `ParallelTransformerLayer`, but the experts are given no tokens' ids."""
        return run_part(self, "", self._through, hidden_states, attention_mask, document_starts, *shared)

    def _through(self, hidden_states: Tensor, *context: Any) -> Tensor:
        attention, dense = self.first.branches
        hidden_states = self.first.left(attention, *self.first.entered(attention, hidden_states), *context)
        normed, residual = self.first.entered(dense, hidden_states)
        normed, for_experts = kernels.fork(normed)
        of_experts, _ = run_part(self, "shortcut", self.shortcut, for_experts)
        hidden_states = self.second(self.first.left(dense, normed, residual), *context)
        return kernels.bias_dropout_add(of_experts, None, hidden_states)
