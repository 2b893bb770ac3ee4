"""The base class of models that train in a pipeline, with the embedding that first and last stage may share."""

from dataclasses import replace
from typing import Any

from mindspore import Parameter, Tensor, nn

from parallel_core.config import ModelConfig


class Module(nn.Cell):
    """A cell that holds a language model and knows where its output weight is.

    A subclass sets `self.language_model`, `self.pre_process` and `self.post_process`; with tied embeddings, or if the
    last stage has a copy of the embedding for another reason (multi-token prediction), it calls
    `initialize_word_embeddings()` at the end of its constructor.
    """

    def __init__(
        self, config: ModelConfig | None = None, share_embeddings_and_output_weights: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.share_embeddings_and_output_weights = share_embeddings_and_output_weights
        self.pre_process = self.post_process = True

    def initialize_word_embeddings(self) -> None:
        """Mark the word embedding's weight as shared on first and last chunk, so that its gradients are summed over
        both; a chunk between them has none to mark. Raises ValueError if the model shares none."""
        if not self._shares_embedding:
            raise ValueError("initialize_word_embeddings() was called, but the model does not share its embedding")
        if self.pre_process or self.post_process:
            shared = self.shared_embedding_or_output_weight()
            shared.meta.spec = replace(shared.meta.spec, shared_over="embedding")

    @property
    def _shares_embedding(self) -> bool:
        has_copy = self.config is not None and self.config.copies_embedding
        return self.share_embeddings_and_output_weights or has_copy

    def borrow_embedding(self, first: "Module") -> None:
        """Let this last chunk's multi-token prediction use the embedding of the stage's first chunk, if it has none of
        its own: in a folded pipeline."""
        own, others = self.language_model, first.language_model
        if getattr(own, "mtp", None) is not None and own.embedding is None and others.embedding is not None:
            own.borrowed.append(others.embedding)

    def shared_embedding_or_output_weight(self) -> Parameter:
        """The word embedding's weight [v/t, h]; on a last chunk without an embedding the output layer's, its copy if
        both are tied. Raises RuntimeError on a chunk that is neither first nor last."""
        if getattr(self.language_model, "embedding", None) is not None:
            return self.language_model.embedding.word_embeddings.weight
        if not self.post_process:
            raise RuntimeError("only the first and the last pipeline stage hold the shared embedding")
        return self.language_model.output_layer.weight

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """Set the hidden states that the previous chunk sent, in the form in which it returned them, for the next call;
        the first chunk ignores them."""
        self.language_model.set_input_tensor(input_tensor)
