"""One transformer layer: attention and feed-forward block, or one of them, added to the residual stream."""

import enum
from typing import Any

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.moe.router import TokenIds
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.random import get_rng_tracer
from pynative.tensor_parallel.recompute import NOTHING, run_part
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.kinds import LayerSettings, cell_of


class ParallelTransformerLayer(Observable):
    """x + attention(norm(x)), then x + mlp(norm(x)), with a mixer of any kind as attention; in training a result is
    dropped out before it is added.

    With sandwich norm each result is normed once more before it is added; with
    --apply-residual-connection-post-layernorm it is added to norm(x). A block may lack a norm or one of the two
    sublayers, and both addends may have a factor. `layer_number` is global and starts at 1; `block` describes the
    layer's sublayers, by default as the configuration says for that number.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
        block: blocks.Layer | blocks.MambaLayer | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        block = blocks.Layer.of(config, layer_number - 1) if block is None else block
        self.boundary = Boundary.of(config)
        self.layer_number, self.recomputed = layer_number, recomputed
        self.hidden_dropout = config.hidden_dropout_rate
        self.weights = {
            branch.sublayer: (weights[0], weights[1] * config.scales.residual)
            for branch, weights in zip(block.BRANCHES, block.residual_weights, strict=False)
        }
        self.residual_after_norm = config.apply_residual_connection_post_norm
        self.branches = block.branches
        self.readers = {b.sublayer for b in block.branches if getattr(block, b.sublayer).reads_tokens}
        """Names of the sublayers that are given the tokens' ids."""
        settings = LayerSettings(config, layer_number, self_attn_mask_type, recomputed)
        for name, part in block.submodules().items():
            setattr(self, name, cell_of(part, settings.within(name)))

    def entered(self, branch: blocks.Branch, hidden_states: Tensor) -> tuple[Tensor, Any]:
        """(The normed input of the branch, the residual that passes it by: the hidden states, or with
        --apply-residual-connection-post-layernorm the normed ones)."""
        if self.residual_after_norm:
            return kernels.fork(self.normed(hidden_states, branch.norm))
        inner, residual = kernels.fork(hidden_states)
        return self.normed(inner, branch.norm), residual

    def normed(self, hidden_states: Tensor, norm: str) -> Tensor:
        """Hidden states normed by the layer's norm of this name; unchanged if it has none."""
        cell = getattr(self, norm, None)
        return hidden_states if cell is None else run_part(self, norm, cell, hidden_states)

    def _join(self, result: tuple[Tensor, Tensor | None], residual: Tensor, branch: blocks.Branch) -> Tensor:
        """weight x residual + dropout(scale x norm(output + bias)), of result = (output, bias). weight and scale are
        the branch's in this layer; without a norm behind the branch norm is the identity."""
        (output, bias), norm = result, getattr(self, branch.norm_after, None)
        weight, scale = self.weights[branch.sublayer]
        if norm is not None:
            output, bias = norm(output if bias is None else kernels.bias_dropout_add(output, bias)), None
        if scale != 1.0:
            output, bias = (None if x is None else kernels.scale(x, scale) for x in (output, bias))
        residual = residual if weight == 1.0 else kernels.scale(residual, weight)
        if not (self.training and self.hidden_dropout):
            return kernels.bias_dropout_add(output, bias, residual)
        key, rows = get_rng_tracer().key(self.layer_number, branch.place), self.boundary.positions(residual.shape[0])
        return kernels.bias_dropout_add(output, bias, residual, self.hidden_dropout, key, rows)

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
        *shared: Any,
    ) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]; with n residual streams n h in place of h) -> the same
        shape. attention_mask, document_starts: as `CoreAttention` takes them; sequence parallelism does not cut them.
        shared: what layers share (choices of keys; keys and values), and the tokens' ids, if there are such."""
        return run_part(self, "", self._through, hidden_states, attention_mask, document_starts, *shared)

    def _through(self, hidden_states: Tensor, *context: Any) -> Tensor:
        tokens = tuple(given for given in context if isinstance(given, TokenIds))
        others = tuple(given for given in context if not isinstance(given, TokenIds))
        for branch in self.branches:
            normed, residual = self.entered(branch, hidden_states)
            given = others if branch.mixes else tokens if branch.sublayer in self.readers else ()
            hidden_states = self.left(branch, normed, residual, *given)
        return hidden_states

    def left(self, branch: blocks.Branch, normed: Tensor, residual: Any, *given: Any) -> Tensor:
        """The residual stream after a branch, whose sublayer is applied to its normed input and the further arguments
        `given`."""
        result = run_part(self, branch.sublayer, getattr(self, branch.sublayer), normed, *given)
        return self.joined(branch, result, residual)

    def joined(self, branch: blocks.Branch, result: tuple[Tensor, Tensor | None], residual: Any) -> Tensor:
        """The sublayer's (output, bias), normed, scaled and dropped out as the layer says, added to the residual of
        `entered`, which is multiplied by the residual's weight in the layer."""
        return self._join(result, residual, branch)
