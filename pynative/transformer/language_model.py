"""The language model of one pipeline stage: embedding, layers, and the head that turns hidden states to logits."""

from __future__ import annotations

import enum

from mindspore import Tensor, nn, ops

from parallel_core.initial_values import Constant
from parallel_core.sharding import Cut, ShardSpec
from pynative.parameter import Dtype, check_one_type, make_parameter
from pynative.tensor_parallel.layers import ColumnParallelLinear, linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary, gather_from_tensor_model_parallel_region
from pynative.transformer.embedding import Embedding
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.transformer import ParallelTransformer


class ParallelLMLogits(nn.Cell):
    """Hidden states times the (tied or own) output weight, cut over the vocabulary."""

    def __init__(self, config, bias: bool = False, compute_dtype: Dtype | None = None) -> None:
        super().__init__()
        self.boundary = Boundary.of(config)
        check_one_type("ParallelLMLogits", config.params_dtype, compute_dtype or config.compute_dtype)
        self.scale, self.cap = config.scales.logits, config.scales.logit_cap
        self.bias = None
        if bias:
            spec = ShardSpec(shape=(config.vocab_size,), cuts=(Cut(0),))
            self.bias = make_parameter(spec, Constant(0.0), config.params_dtype)

    def construct(self, hidden_states: Tensor, weight: Tensor, parallel_output: bool = True) -> Tensor:
        """[s, b, h] (with sequence parallelism [s/t, b, h]), [v/t, h] -> [s, b, v/t]; with parallel_output False the
        ranks' logits are gathered: [s, b, v]."""
        logits = linear_with_grad_accumulation_and_async_allreduce(hidden_states, weight, self.bias, self.boundary)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.cap is not None:
            # cap tanh(x / cap); MindSpore's tanh of a CPU is off by 1e-4 where it saturates, its sigmoid is not.
            logits = ops.sigmoid(logits * (2.0 / self.cap)) * (2.0 * self.cap) - self.cap
        return logits if parallel_output else gather_from_tensor_model_parallel_region(logits, self.boundary.group)


class TransformerLanguageModel(nn.Cell):
    """embedding (first stage), layers, final norm and untied output weight (last stage). Names here are Megatron's."""

    def __init__(
        self,
        config,
        encoder_attn_mask_type: enum.Enum = AttnMaskType.causal,
        pre_process: bool = True,
        post_process: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(config) if pre_process else None
        self.decoder = ParallelTransformer(config, encoder_attn_mask_type, pre_process, post_process)
        self.output_layer = None
        if post_process and config.untie_embeddings_and_output_weights:
            self.output_layer = ColumnParallelLinear(config.hidden_size, config.vocab_size, config=config, bias=False)

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """What the stage before sent, [s, b, h]."""
        self.decoder.set_input_tensor(input_tensor)

    def construct(
        self,
        tokens: Tensor | None,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        tokentype_ids: None = None,
        retriever_input_ids: None = None,
        retriever_position_ids: None = None,
        retriever_attn_mask: None = None,
        inference_params: None = None,
    ) -> Tensor:
        """tokens, position_ids [b, s], attention_mask [b, 1, s, s] (True: left out) or None for causal -> [s, b, h]."""
        extras = {
            "tokentype_ids": tokentype_ids,
            "retriever_input_ids": retriever_input_ids,
            "retriever_position_ids": retriever_position_ids,
            "retriever_attn_mask": retriever_attn_mask,
            "inference_params": inference_params,
        }
        given = [name for name, value in extras.items() if value is not None]
        if given:
            raise ValueError(f"a GPT language model takes no {', '.join(given)}; pass None")
        hidden_states = None if self.embedding is None else self.embedding(tokens, position_ids)
        return self.decoder(hidden_states, attention_mask)


def get_language_model(
    config,
    encoder_attn_mask_type: enum.Enum = AttnMaskType.causal,
    num_tokentypes: int = 0,
    add_pooler: bool = False,
    pre_process: bool = True,
    post_process: bool = True,
) -> tuple[TransformerLanguageModel, str]:
    """This stage's language model and the key under which checkpoints know it."""
    if num_tokentypes or add_pooler:
        raise ValueError(
            f"num_tokentypes={num_tokentypes}, add_pooler={add_pooler}: token types and a pooler belong to BERT-style "
            f"models, this is a GPT; use 0 and False"
        )
    return TransformerLanguageModel(config, encoder_attn_mask_type, pre_process, post_process), "language_model"
