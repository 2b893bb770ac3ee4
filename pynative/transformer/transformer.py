"""The stack of layers of one chunk of a pipeline stage."""

import enum

from mindspore import Tensor, nn

from parallel_core.blocks import chunk_of
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute import ChunkRecompute
from pynative import parallel_state
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.layer import ParallelTransformerLayer
from pynative.transformer.norm import get_norm
from pynative.transformer.recompute import runs_of


class LayerStack(nn.Cell):
    """Layers under their global numbers, so that a parameter's path is its global name on every stage."""

    def __init__(self, layers: dict[int, nn.Cell], recompute: ChunkRecompute) -> None:
        super().__init__()
        for number, layer in layers.items():
            self.insert_child_to_cell(str(number), layer)
        self._runs = runs_of(list(layers.values()), recompute)

    def construct(self, hidden_states: Tensor, *context) -> Tensor:
        """Each layer on the result of the one before."""
        for run in self._runs:
            hidden_states = run(hidden_states, *context)
        return hidden_states


class ParallelTransformer(nn.Cell):
    """The layers of this stage's chunk at hand, and in the last chunk of all the final norm.

    Layers of --noop-layers are left out: they only take up a number.
    """

    def __init__(
        self,
        config: ModelConfig,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
        pre_process: bool = True,
        post_process: bool = True,
        post_norm: bool | None = None,
    ) -> None:
        super().__init__()
        self.pre_process = pre_process
        self.input_tensor: Tensor | None = None
        stage = parallel_state.get_pipeline_model_parallel_rank()
        chunk = parallel_state.get_virtual_pipeline_model_parallel_rank() or 0
        stack = chunk_of(config, stage, chunk).decoder.layers
        self.layers = LayerStack(
            {n: ParallelTransformerLayer(config, n + 1, self_attn_mask_type, block) for n, block in stack.layers},
            stack.recompute,
        )
        wanted = config.use_final_norm if post_norm is None else post_norm
        self.final_layernorm = get_norm(config) if post_process and wanted else None

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """What the chunk before sent, [s, b, h]; used instead of the argument by every chunk but the first."""
        self.input_tensor = input_tensor

    def construct(
        self,
        hidden_states: Tensor | None,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
    ) -> Tensor:
        """[s, b, h] -> [s, b, h]."""
        if not self.pre_process:
            hidden_states = self.input_tensor
        hidden_states = self.layers(hidden_states, attention_mask, document_starts)
        return hidden_states if self.final_layernorm is None else self.final_layernorm(hidden_states)


def unused_recompute_notice(model: nn.CellList, config: ModelConfig) -> str | None:
    """One line where a stage's layers are to be computed again, or offloaded, and its cells have none of ours."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    layers = [layer for n in range(len(model)) for layer in chunk_of(config, stage, n).decoder.layers.recompute.layers]
    asked = any(layer.is_asked_for for layer in layers)
    if not asked or any(isinstance(cell, LayerStack) for chunk in model for _, cell in chunk.cells_and_names()):
        return None
    return (
        f"{type(model[0]).__name__} has no ParallelTransformer: flags of recomputation and offloading change nothing "
        f"in it; put pynative.tensor_parallel.recompute.checkpoint around what is to be computed again"
    )
