"""The output layer of a language model: hidden states to logits over a cut vocabulary."""

from __future__ import annotations

from dataclasses import replace

from mindspore import Tensor

from parallel_core.blocks import Chunk, Linear, ParameterSpec, output_layer
from parallel_core.blocks.linear import COLUMNS
from parallel_core.config import ModelConfig
from pynative import kernels
from pynative.parameter import Dtype
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.layers import ParallelLinear
from pynative.tensor_parallel.mappings import gather_from_tensor_model_parallel_region

WORD_EMBEDDINGS = "embedding.word_embeddings.weight"


class ParallelLMLogits(Observable, ParallelLinear):
    """Logits [s, b, v/t]: the product of hidden states and this rank's rows [v/t, h] of the output weight, plus a bias
    if there is one, scaled and soft-capped if the configuration says so (Megatron's `output_layer`). It may be called
    several times in a step: the weight gradients of the calls add up.

    Args:
        bias: whether the default block has one.
        block: the linear's block; by default a linear without a weight of its own, to which every call passes one.
        compute_dtype: the type of the product; None: the configuration's.
        copied: the spec of the word embedding's weight, of which the cell then has a copy; None: it has none.
    """

    cut_axis = COLUMNS

    def __init__(
        self,
        config: ModelConfig,
        bias: bool = False,
        compute_dtype: Dtype | None = None,
        *,
        block: Linear | None = None,
        copied: ParameterSpec | None = None,
    ) -> None:
        block = replace(output_layer(config), bias=bias, allocates_weight=False) if block is None else block
        sizes = block.input_size, block.output_size
        super().__init__(*sizes, config=config, block=block, copied=copied, compute_dtype=compute_dtype)
        self.scale, self.cap = config.scales.logits, config.scales.logit_cap

    def construct(self, hidden_states: Tensor, weight: Tensor | None = None, parallel_output: bool = True) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> [s, b, v/t]; with parallel_output False the ranks'
        logits are gathered: [s, b, v]. weight [v/t, h]: used instead of its own. Raises ValueError if there is
        neither."""
        weight = self.weight if weight is None else weight
        if weight is None:
            raise ValueError("ParallelLMLogits has no weight of its own: pass one")
        hidden_states = kernels.cast(hidden_states, self.compute_dtype)
        logits = self.product(hidden_states, weight, self.bias, self.boundary, self.boundary)
        if self.scale != 1.0:
            logits = kernels.scale(logits, self.scale)
        if self.cap is not None:
            logits = kernels.soft_cap(logits, self.cap)
        return logits if parallel_output else gather_from_tensor_model_parallel_region(logits, self.boundary.group)


def heads_of(chunk: Chunk, config: ModelConfig) -> tuple[ParallelLMLogits | None, list[ParallelLMLogits]]:
    """(The chunk's output layer, None unless the chunk is the last; output layers of those depths of multi-token
    prediction that have their own).

    With tied embeddings the chunk's output layer uses the word embedding's weight; a last chunk that has no word
    embedding has a copy of the weight, made by the same recipe under the same name, so that both are equal from the
    beginning. The gradients of the two are summed over the embedding group, so that they stay equal; in the gradient
    norm only the first stage's counts. Parameters of a depth's output layer are named after the depth.
    """
    if chunk.output_layer is None:
        return None, []
    copy = None
    if chunk.shared_embedding is not None:
        table = replace(chunk.shared_embedding.word_embeddings, shared_over=None).parameters()["weight"]
        copy = table._replace(shard=table.shard.named(WORD_EMBEDDINGS))
    head = ParallelLMLogits(config, block=chunk.output_layer, copied=copy)
    own = chunk.mtp.own_output_layers if chunk.mtp else {}
    return head, [_head_at(path, block, config) for path, block in own.items()]


def _head_at(path: str, block: Linear, config: ModelConfig) -> ParallelLMLogits:
    head = ParallelLMLogits(config, block=block)
    for name in block.parameters():
        meta = getattr(head, name).meta
        meta.spec = meta.spec.named(f"{path}.{name}")
    return head
