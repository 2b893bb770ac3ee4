"""The base of models that train in a pipeline, with the embedding that first and last stage may share."""

from dataclasses import replace

from mindspore import Parameter, Tensor, nn

from parallel_core.initial_values import Normal
from parallel_core.sharding import Cut, ShardSpec
from pynative.parameter import make_parameter


class SharedEmbeddingWeight(nn.Cell):
    """The last stage's copy of the first stage's word embedding.

    It starts from the same recipe under the same name, so the two are equal from the beginning; their gradients are
    summed over the embedding group, so they stay equal. The copy counts once in the gradient norm: at the first stage.
    """

    def __init__(self, config) -> None:
        super().__init__()
        spec = ShardSpec(
            name="embedding.word_embeddings.weight", shape=(config.vocab_size, config.hidden_size), cuts=(Cut(0),)
        )
        std = config.init_method_std if config.embedding_init_method_std is None else config.embedding_init_method_std
        self.weight = make_parameter(spec, Normal(std), config.embedding_init_dtype or config.params_dtype)


class Module(nn.Cell):
    """A cell that holds a language model and knows where its output weight is.

    A subclass sets `self.language_model`, `self.pre_process` and `self.post_process`; with tied embeddings it calls
    `initialize_word_embeddings()` at the end of its constructor.
    """

    def __init__(self, config=None, share_embeddings_and_output_weights: bool = True, **kwargs) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.share_embeddings_and_output_weights = share_embeddings_and_output_weights
        self.pre_process = self.post_process = True

    def initialize_word_embeddings(self) -> None:
        """Give the last stage of a pipeline its copy of the word embedding; with one stage there is nothing to copy."""
        if not self.share_embeddings_and_output_weights:
            raise ValueError("initialize_word_embeddings() was called, but the model does not share its embedding")
        if self.post_process and not self.pre_process:
            self.word_embeddings = SharedEmbeddingWeight(self.config)
        if self.pre_process or self.post_process:
            tied = self.shared_embedding_or_output_weight()
            tied.meta.spec = replace(tied.meta.spec, shared_over="embedding")

    def shared_embedding_or_output_weight(self) -> Parameter:
        """The tied weight [v/t, h], on a first or last stage."""
        if self.pre_process:
            return self.language_model.embedding.word_embeddings.weight
        if not self.post_process:
            raise RuntimeError("only the first and the last pipeline stage hold the shared embedding")
        return self.word_embeddings.weight

    def set_input_tensor(self, input_tensor: Tensor | None) -> None:
        """What the stage before sent."""
        self.language_model.set_input_tensor(input_tensor)
