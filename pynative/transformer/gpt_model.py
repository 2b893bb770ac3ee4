"""GPT: a causal language model whose last stage computes the loss."""

from mindspore import Tensor

from parallel_core.config import ModelConfig
from pynative import kernels
from pynative.context_parallel.batch import counted_tokens, host_array
from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.eos_mask import EosMask
from pynative.transformer.language_model import check_unused, get_language_model
from pynative.transformer.loss import LossWithMask
from pynative.transformer.module import Module
from pynative.transformer.multi_token_prediction import FurtherLosses


class GPTModel(Module):
    """One pipeline stage of a GPT, or one chunk of a stage.

    Args:
        config: the ModelConfig.
        num_tokentypes: 0; GPT has none.
        parallel_output: leave the logits that a call without labels returns cut over the vocabulary.
        pre_process, post_process: whether this begins the model, and whether it ends it.
        eod: the end-of-document token, from which positions and document starts are made (EosMask) in every call
            without position_ids, and in every call with neither attention_mask nor document_starts; they then take the
            place of those given, and of a mask. None: they never are.
        reset_position_ids: positions that are made so count from 0 in every document.
    """

    model_key = "gpt_model"

    def __init__(
        self,
        config: ModelConfig,
        num_tokentypes: int = 0,
        parallel_output: bool = True,
        pre_process: bool = True,
        post_process: bool = True,
        *,
        eod: int | None = None,
        reset_position_ids: bool = False,
    ) -> None:
        super().__init__(config, not config.untie_embeddings_and_output_weights)
        self.parallel_output = parallel_output
        self.pre_process, self.post_process = pre_process, post_process
        self.eod_mask = None
        if eod is not None:
            self.eod_mask = EosMask(config.dataset_config.batch_size, config.seq_length, eod, reset_position_ids)
        self.language_model, _ = get_language_model(
            config, AttnMaskType.causal, num_tokentypes, pre_process=pre_process, post_process=post_process
        )
        if post_process:
            # No other code reads the logits, and the head's own backward does not, either.
            self.loss = LossWithMask(VocabParallelCrossEntropy(overwrite_logits=True))
        self.further_losses = FurtherLosses(config) if post_process and config.multi_token_prediction.depths else None
        if self._shares_embedding:
            self.initialize_word_embeddings()

    @property
    def unread_entries(self) -> frozenset[str]:
        """Names of a batch's entries that this chunk has no use for: labels and loss_mask on all chunks but the
        model's last; on all but its first, unless `eod` was given, position_ids, and also tokens if nothing here reads
        them."""
        unread = frozenset() if self.post_process else frozenset({"labels", "loss_mask"})
        if self.pre_process or self.eod_mask is not None:
            return unread
        reads_tokens = self.further_losses is not None or self.language_model.decoder.reads_tokens
        return unread | ({"position_ids"} if reads_tokens else {"tokens", "position_ids"})

    def construct(
        self,
        tokens: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        loss_mask: Tensor | None = None,
        retriever_input_ids: None = None,
        retriever_position_ids: None = None,
        retriever_attn_mask: None = None,
        labels: Tensor | None = None,
        tokentype_ids: None = None,
        inference_params: None = None,
        document_starts: Tensor | None = None,
        routed_experts: Tensor | None = None,
    ) -> Tensor:
        """tokens, position_ids, labels, loss_mask [b, s] -> the loss of the next tokens, a scalar, whose backward in
        training is also that of multi-token prediction's losses, if any; without labels logits [b, s, v/t] ([b, s, v]
        without parallel_output); on earlier chunks hidden states [s, b, h], with sequence parallelism [s/t, b, h],
        wider with several residual streams or a choice of keys that is sent along. attention_mask, document_starts: as
        `CoreAttention` takes them (None: causal; without `eod` one document). routed_experts, int [b, s, L, k]: given
        choices, a token's k experts in each of the decoder's L layers that have experts; -1: the router chooses. Layers
        whose experts a hash table or SparseMixer gives ignore them. Raises ValueError for retriever_*, tokentype_ids,
        inference_params."""
        check_unused(
            tokentype_ids=tokentype_ids,
            retriever_input_ids=retriever_input_ids,
            retriever_position_ids=retriever_position_ids,
            retriever_attn_mask=retriever_attn_mask,
            inference_params=inference_params,
        )
        says_documents = attention_mask is not None or document_starts is not None
        if self.eod_mask is not None and not (position_ids is not None and says_documents):
            attention_mask, (position_ids, document_starts) = None, self.eod_mask.documents(tokens)
        masking = attention_mask, None if document_starts is None else host_array(document_starts)
        experts = None if routed_experts is None else host_array(routed_experts)
        hidden_states = self.language_model(tokens, position_ids, *masking, routed_experts=experts)
        if not self.post_process:
            return hidden_states
        if labels is None:
            return self._logits(hidden_states, self.parallel_output).swapaxes(0, 1).contiguous()
        if self.further_losses is None or not self.training:
            return self._loss(hidden_states, labels, loss_mask)
        hidden_states, states = self.language_model.predict_further(hidden_states, tokens, *masking)
        loss = self._loss(hidden_states, labels, loss_mask)
        return self.further_losses(loss, states, labels, loss_mask, self._loss)

    def _logits(self, hidden_states: Tensor, parallel_output: bool = True, depth: int = 0) -> Tensor:
        """Hidden states [s, b, h] -> logits [s, b, v/t], with parallel_output False gathered, [s, b, v]. depth: of
        multi-token prediction, from 1; 0: the decoder."""
        if depth and len(self.language_model.further_output_layers):
            return self.language_model.further_output_layers[depth - 1](hidden_states, None, parallel_output)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        head = self.language_model.output_layer
        assert head is not None, "only the last stage has a head"
        return head(hidden_states, weight, parallel_output)

    def _loss(self, hidden_states: Tensor, labels: Tensor, loss_mask: Tensor | None, depth: int = 0) -> Tensor:
        """The masked mean loss of hidden states [s, b, h]. Labels and mask are transposed to the logits' [s, b], since
        they are smaller. depth: of multi-token prediction, from 1; 0: the decoder."""
        turned_mask = None if loss_mask is None else kernels.sequence_first(loss_mask)
        tokens = counted_tokens(labels, loss_mask)
        return self.loss(self._logits(hidden_states, depth=depth), kernels.sequence_first(labels), turned_mask, tokens)
