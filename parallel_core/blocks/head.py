"""The end of a model: hidden states to logits over a cut vocabulary, and logits to the loss."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.block import Block
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, INT32, MicroBatch
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Normal
from parallel_core.messages import Message, message
from parallel_core.operations import LOSS, Operation, elementwise


def output_layer(config: ModelConfig) -> Linear:
    """The configuration's output layer, a column-parallel linear of hidden_size input and vocab_size output features;
    with tied embeddings it has no weight of its own (`allocates_weight` False): it uses the word embedding's or a copy
    of that."""
    linear = Linear.column(config, config.hidden_size, config.vocab_size, bias=config.output_layer_bias)
    initial = Normal(config.embedding_init_method_std if config.use_mup else config.init_method_std)
    has_own, frozen = config.untie_embeddings_and_output_weights, config.lora_config.use_lora
    return replace(linear, initial=initial, allocates_weight=has_own, role="embedding or output", frozen=frozen)


@dataclass(frozen=True)
class CrossEntropy(Block):
    """The loss of each token over a vocabulary that is cut over the tensor-parallel ranks, and their mean."""

    vocab_size: int

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """Two passes over the logits in the forward, and two in the backward."""
        logits = micro_batch.tokens * (self.vocab_size // micro_batch.tensor) * FLOAT32
        yield elementwise(2 * logits, 2 * logits, 4, LOSS)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of each token's largest logit, then of its sum of exponentials and its target's logit, over the
        tensor-parallel ranks; and of one number, the mean loss, over the context-parallel ranks."""
        for numbers in (1, 2):
            yield from micro_batch.tensor_message("all_reduce", numbers * micro_batch.tokens * FLOAT32)
        yield from message("cp", "all_reduce", FLOAT32, micro_batch.context.size, "mean")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of a rank's logits and, for each token, of three float32 numbers over
        all of the vocabulary (largest logit, sum of exponentials, target's logit), its target id and its weight in the
        mean."""
        logits = self.vocab_size // micro_batch.tensor * micro_batch.item_size
        per_token = logits + 3 * FLOAT32 + INT32 + FLOAT32
        return {"": micro_batch.tokens * per_token}
