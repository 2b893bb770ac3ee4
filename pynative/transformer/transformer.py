"""The stack of layers in one chunk of a pipeline stage."""

import enum
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.blocks import blocks_within, chunk_of
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, parallel_state
from pynative.moe.router import TokenIds
from pynative.tensor_parallel.recompute import checkpoint
from pynative.transformer.carried_choice import SharedChoices
from pynative.transformer.cross_layer_attention import SharedKeys
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.kinds import LayerSettings
from pynative.transformer.layer_kinds import LAYERS
from pynative.transformer.norm import norm_of
from pynative.transformer.stream_connections import stream_head_of


def chunk_here(config: ModelConfig, pre_process: bool, post_process: bool) -> blocks.Chunk:
    """The blocks of the chunk that is being built: this rank's pipeline stage, and its current virtual stage (the first
    if none is set). pre_process and post_process say whether it begins and ends the model."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    chunk = parallel_state.get_virtual_pipeline_model_parallel_rank() or 0
    return chunk_of(config, stage, chunk, (pre_process, post_process))


class LayerStack(nn.Cell):
    """Layers under their global numbers, from 0, so that a parameter's path is its global name on every stage.

    With cross-layer attention every layer is given one more argument, the last: a `SharedKeys`, through which a layer
    hands keys and values to the next.
    """

    def __init__(self, block: blocks.LayerStack, config: ModelConfig, attn_mask_type: enum.Enum) -> None:
        super().__init__()
        self._plan = plan = block.recompute
        for (number, layer), asked in zip(block.layers, plan.layers, strict=True):
            recomputed = CellRecompute.of(asked, plan.smallest_offloaded)
            settings = LayerSettings(config, number + 1, attn_mask_type, recomputed)
            self.insert_child_to_cell(str(number), LAYERS[type(layer)](layer, settings))
        layers = list(self.cells())
        self._groups = [(layers[run.start : run.stop], plan.layers[run.start].full) for run in plan.runs()]
        self.shares_keys = any(blocks_within(block, blocks.CrossLayerAttention))
        """Whether layers use keys and values of the layer before them."""

    def construct(self, hidden_states: Tensor, *context: Any) -> Tensor:
        """Apply the layers one after the other to hidden states [s, b, h] (with sequence parallelism [s/t, b, h], with
        n residual streams n h channels); layers that are recomputed as a whole run by `checkpoint`. context: further
        arguments of every layer. Returns hidden states of the same shape."""
        for layers, recomputed in self._groups:
            through = partial(_through, layers, self.shares_keys)
            if recomputed:
                hidden_states = checkpoint(through, self._plan.slices_inputs, hidden_states, *context)
            else:
                hidden_states = through(hidden_states, *context)
        return hidden_states


def _through(layers: Sequence[nn.Cell], share_keys: bool, hidden_states: Tensor, *context: Any) -> Tensor:
    context = (*context, SharedKeys()) if share_keys else context
    for layer in layers:
        hidden_states = layer(hidden_states, *context)
    return hidden_states


class ParallelTransformer(nn.Cell):
    """The layers of the chunk that is being built; on the model's last chunk also the merge of several residual streams
    and the final norm.

    Layers of --noop-layers are left out: they only take up a number. pre_process, post_process: whether the chunk
    begins and ends the model. block: the decoder; None: the configuration's for this chunk. post_norm: whether a chunk
    that ends the model ends with the configuration's norm; None: as the block says.
    """

    def __init__(
        self,
        config: ModelConfig,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
        pre_process: bool = True,
        post_process: bool = True,
        post_norm: bool | None = None,
        *,
        block: blocks.Decoder | None = None,
    ) -> None:
        super().__init__()
        self.pre_process = pre_process
        self.input_tensor: Tensor | None = None
        if block is None:
            block = chunk_here(config, pre_process, post_process).decoder
        if post_norm is not None:
            block = replace(block, final_layernorm=blocks.Norm.of(config) if post_norm and post_process else None)
        self.layers = LayerStack(block.layers, config, self_attn_mask_type)
        shares = config.sparse_attention.enabled and not config.compressed_attention.enabled
        self.choices = SharedChoices(config, block) if shares else None
        self.hc_head = stream_head_of(block.hc_head)
        self.final_layernorm = norm_of(block.final_layernorm, config)
        self.reads_tokens = block.reads_tokens
        self.streams = config.hyper_connections.streams if config.hyper_connections.enabled else 1
        self.received_choice = block.received

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """Set the hidden states that the previous chunk sent, in the form in which it returned them; every chunk but
        the first uses them instead of the argument."""
        self.input_tensor = input_tensor

    def construct(
        self,
        hidden_states: Tensor | None,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
        tokens: TokenIds | None = None,
    ) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> the same shape. Between chunks the last axis is n h with
        n residual streams; channels of a shared choice of keys, if there is one, come behind. hidden_states: read by
        the model's first chunk alone. tokens: the tokens' ids, for layers that read them."""
        if not self.pre_process:
            hidden_states = self.input_tensor
        elif self.streams > 1:
            hidden_states = kernels.repeat_streams(hidden_states, self.streams)
        context = attention_mask, document_starts, *((tokens,) if self.reads_tokens else ())
        if self.choices is None:
            hidden_states = self.layers(hidden_states, *context)
        else:
            hidden_states, choices = self.choices.received(hidden_states)
            hidden_states = self.layers(hidden_states, *context, choices)
            hidden_states = self.choices.sent(hidden_states, choices)
        if self.hc_head is not None:
            hidden_states = self.hc_head(hidden_states)
        return hidden_states if self.final_layernorm is None else self.final_layernorm(hidden_states)


def unused_recompute_notice(model: nn.CellList, config: ModelConfig) -> str | None:
    """One line for the log if flags ask to recompute or offload decoder layers of this stage, or parts of them, but the
    stage's chunks (`model`) have no LayerStack, as those of a user's own model may; else None."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    layers = [layer for n in range(len(model)) for layer in chunk_of(config, stage, n).decoder.layers.recompute.layers]
    asked = any(layer.is_asked_for for layer in layers)
    if not asked or any(isinstance(cell, LayerStack) for chunk in model for _, cell in chunk.cells_and_names()):
        return None
    return (
        f"{type(model[0]).__name__} has no ParallelTransformer: flags of recomputation and offloading change nothing "
        f"in it; put pynative.tensor_parallel.recompute.checkpoint around what is to be computed again"
    )
