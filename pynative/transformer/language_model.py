"""The language model of one chunk of a pipeline stage: those of embedding, layers and output layer that it has."""

import enum
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.context_parallel.batch import host_array
from pynative.moe.router import TokenIds
from pynative.moe.router_replay import checked
from pynative.tape import autograd
from pynative.transformer.embedding import Embedding
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.head import ParallelLMLogits, heads_of
from pynative.transformer.multi_token_prediction import MultiTokenPrediction
from pynative.transformer.transformer import ParallelTransformer, chunk_here

__all__ = ["ParallelLMLogits", "TransformerLanguageModel", "check_unused", "get_language_model"]

_UNUSED = frozenset(
    {"tokentype_ids", "retriever_input_ids", "retriever_position_ids", "retriever_attn_mask", "inference_params"}
)
"""Arguments that Megatron's language models have for other models than a GPT in training."""


def check_unused(**arguments: Any) -> None:
    """Raise ValueError if one of Megatron's arguments that a GPT does not use is not None, TypeError for an unknown
    argument."""
    unknown, given = arguments.keys() - _UNUSED, [name for name, value in arguments.items() if value is not None]
    if unknown:
        raise TypeError(f"a language model has no argument {', '.join(sorted(unknown))}")
    if given:
        raise ValueError(f"a GPT language model takes no {', '.join(given)}; pass None")


class TransformerLanguageModel(nn.Cell):
    """embedding (first chunk), decoder: layers, on the last chunk with the final norm if there is one, and output_layer
    (last chunk), under Megatron's names.

    With multi-token prediction the last chunk has `mtp`, and an embedding for it: its own if it is the first chunk too;
    in a folded pipeline the first chunk's, which is borrowed; else a copy of the first chunk's: the gradients of
    both are summed, so that they stay equal. Or each depth has an embedding and an output layer of its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoder_attn_mask_type: enum.Enum = AttnMaskType.causal,
        pre_process: bool = True,
        post_process: bool = True,
    ) -> None:
        super().__init__()
        self.config, self.replays = config, config.moe_config.moe_enable_routing_replay
        chunk = chunk_here(config, pre_process, post_process)
        self.embedding = None if chunk.embedding is None else Embedding(config)
        self.borrowed: list[
            Embedding
        ] = []  # in a list, so that their parameters are not registered here: the first chunk has them
        self.decoder = ParallelTransformer(
            config, encoder_attn_mask_type, pre_process, post_process, block=chunk.decoder
        )
        self.mtp = None if chunk.mtp is None else MultiTokenPrediction(config, chunk.mtp, encoder_attn_mask_type)
        self.output_layer, own_heads = heads_of(chunk, config)
        self.further_output_layers = nn.CellList(own_heads)

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """Set the hidden states that the previous chunk sent, in the form in which it returned them, for the next call;
        the first chunk ignores them."""
        self.decoder.set_input_tensor(input_tensor)

    def construct(
        self,
        tokens: Tensor | None,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        document_starts: Array | None = None,
        routed_experts: Array | None = None,
        **unused: None,
    ) -> Tensor:
        """Hidden states [s, b, h] (with sequence parallelism [s/t, b, h]), which on the last chunk `output_layer` turns
        to logits: on the first chunk from tokens and position_ids [b, s], later from those given to `set_input_tensor`.
        Between chunks they are wider with several residual streams or a choice of keys that is sent along.

        attention_mask, document_starts: as `CoreAttention` takes them; None for one document.
        routed_experts: [b, s, L, k], choices for the decoder's L layers that have experts, or None. unused: arguments
        of Megatron's, as in `check_unused`. Raises ValueError for one that is not None, for routed_experts without
        --moe-enable-routing-replay, and in training with that flag if there are no routed_experts.
        """
        check_unused(**unused)
        embedding = self.embedding if self.decoder.pre_process else None
        hidden_states = None if embedding is None else _with_gradient(embedding(tokens, position_ids))
        self._check_replay(routed_experts is not None)
        if not self.decoder.reads_tokens:
            return self.decoder(hidden_states, attention_mask, document_starts)
        assert tokens is not None, "a stage whose experts are chosen by tokens is given their ids"
        own = host_array(tokens)
        if routed_experts is not None:
            routed_experts = checked(routed_experts, own.shape, self.config).swapaxes(0, 1)
        ids = TokenIds(np.ascontiguousarray(own.T), routed_experts)
        return self.decoder(hidden_states, attention_mask, document_starts, ids)

    def _check_replay(self, has_experts: bool) -> None:
        """Raise ValueError if the batch has routed experts that training does not replay, or lacks those that it
        does."""
        if has_experts and not self.replays:
            raise ValueError("the batch has routed_experts: add --moe-enable-routing-replay, or leave them out")
        if self.replays and self.training and not has_experts:
            raise ValueError(
                "the batch has no routed_experts: --moe-enable-routing-replay trains on choices that were recorded; "
                "give them by ReplayedTexts, or leave the flag out"
            )

    def predict_further(
        self, hidden_states: Tensor, tokens: Tensor, *masking: Tensor | Array | None
    ) -> tuple[Tensor, list[Tensor]]:
        """(The decoder's hidden states [s, b, h], with sequence parallelism [s/t, b, h], a list of the hidden states of
        each depth of multi-token prediction, empty if there is none), all for an output layer. tokens: [b, s]; masking:
        attention mask and document starts, as `construct` takes them."""
        if self.mtp is None:
            return hidden_states, []
        hidden_states, before = kernels.fork(hidden_states)
        embedding = next(iter(self.borrowed), self.embedding)
        return hidden_states, self.mtp(before, tokens, embedding, *masking)


def _with_gradient(hidden_states: Tensor) -> Tensor:
    """The embedding's output, marked as needing a gradient even if the embedding is frozen, so that the first layer
    does what every layer does."""
    if not autograd.is_recording() or autograd.needs_gradient(hidden_states):
        return hidden_states
    return autograd.leaf(hidden_states)


def get_language_model(
    config: ModelConfig,
    encoder_attn_mask_type: enum.Enum = AttnMaskType.causal,
    num_tokentypes: int = 0,
    add_pooler: bool = False,
    pre_process: bool = True,
    post_process: bool = True,
) -> tuple[TransformerLanguageModel, str]:
    """(This chunk's language model, "language_model": its key in Megatron's checkpoints). Raises ValueError for token
    types or a pooler."""
    if num_tokentypes or add_pooler:
        raise ValueError(
            f"num_tokentypes={num_tokentypes}, add_pooler={add_pooler}: token types and a pooler belong to BERT-style "
            f"models, this is a GPT; use 0 and False"
        )
    return TransformerLanguageModel(config, encoder_attn_mask_type, pre_process, post_process), "language_model"
