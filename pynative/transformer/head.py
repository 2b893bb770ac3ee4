"""The head of a language model: hidden states to logits over a cut vocabulary."""

from __future__ import annotations

from dataclasses import replace

from mindspore import Tensor

from parallel_core.blocks import EmbeddingTable, ParameterSpec, output_layer
from parallel_core.blocks.linear import COLUMNS
from parallel_core.config import ModelConfig
from pynative import kernels
from pynative.parameter import Dtype, make_parameter
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.layers import ParallelLinear
from pynative.tensor_parallel.linear import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import gather_from_tensor_model_parallel_region

WORD_EMBEDDINGS = "embedding.word_embeddings.weight"


class ParallelLMLogits(Observable, ParallelLinear):
    """Logits: the product of hidden states and the output weight [v, h], whose vocabulary is cut over the ranks.

    Megatron's `output_layer`. May be called on several hidden states of a step, each with its own weight gradient.

    Args:
        bias: whether there is one.
        weight: what to make its own weight of; None: every call passes one (tied embeddings).
    """

    cut_axis = COLUMNS

    def __init__(
        self,
        config: ModelConfig,
        bias: bool = False,
        compute_dtype: Dtype | None = None,
        *,
        weight: ParameterSpec | None = None,
    ) -> None:
        super().__init__(
            config.hidden_size,
            config.vocab_size,
            config=config,
            bias=False,
            skip_weight_param_allocation=True,
            compute_dtype=compute_dtype,
        )
        self.scale, self.cap = config.scales.logits, config.scales.logit_cap
        if weight is not None:
            self.weight = make_parameter(*weight)
        if bias:
            self.bias = make_parameter(*replace(output_layer(config), bias=True).parameters()["bias"])

    def construct(self, hidden_states: Tensor, weight: Tensor | None = None, parallel_output: bool = True) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> [s, b, v/t]; with parallel_output False the ranks'
        logits are gathered: [s, b, v]. weight [v/t, h]: instead of its own."""
        weight = self.weight if weight is None else weight
        if weight is None:
            raise ValueError("ParallelLMLogits has no weight of its own: pass one")
        hidden_states = kernels.cast(hidden_states, self.compute_dtype)
        logits = linear_with_grad_accumulation_and_async_allreduce(hidden_states, weight, self.bias, self.boundary)
        if self.scale != 1.0:
            logits = kernels.scale(logits, self.scale)
        if self.cap is not None:
            logits = kernels.soft_cap(logits, self.cap)
        return logits if parallel_output else gather_from_tensor_model_parallel_region(logits, self.boundary.group)


def own_head(config: ModelConfig, depth: int) -> ParallelLMLogits:
    """The head of a depth of multi-token prediction, from 0, that does not use the model's. It works behind that, and
    so lies behind it; its parameters have the depth's names."""
    block = replace(output_layer(config), allocates_weight=True)
    head = ParallelLMLogits(config, bias=block.bias, weight=block.parameters()["weight"])
    for name in block.parameters():
        meta = getattr(head, name).meta
        meta.spec = meta.spec.named(f"mtp.layers.{depth}.output_layer.{name}")
    return head


def head_of(config: ModelConfig, has_embedding: bool) -> ParallelLMLogits:
    """The configuration's head on the last stage; has_embedding: the stage has the word embedding too.

    With tied embeddings its weight is the word embedding's, of which a last stage without it has a copy: made by the
    same recipe under the same name, so that both are equal from the beginning; their gradients are summed over the
    embedding group, so that they stay equal. The copy counts once in the gradient norm: at the first stage.
    """
    block, weight = output_layer(config), None
    if block.allocates_weight:
        weight = block.parameters()["weight"]
    elif not has_embedding:
        table = EmbeddingTable.of_words(config).parameters()["weight"]
        weight = table._replace(shard=table.shard.named(WORD_EMBEDDINGS))
    return ParallelLMLogits(config, bias=block.bias, weight=weight)
