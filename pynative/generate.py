"""Text from a trained model, a token at a time.

Every token is a full forward over the window: there is no key/value cache yet, so a token costs as much as a prompt of
its length. Meant for looking at a model, not for serving one.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core.context import SequenceLayout
from parallel_core.sampling import check_sampling, next_token
from pynative import parallel_state
from pynative.autograd import no_grad


def generate(
    model: nn.Cell,
    tokens: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    seed: int = 0,
    end_of_document: int | None = None,
) -> list[int]:
    """The tokens that follow `tokens`: at most `max_new_tokens`, fewer if `end_of_document` comes (it is left out).

    The model sees the last --seq-length tokens. Ranks that compute together call this alike and get the same: those of
    a tensor-parallel group and, with expert parallelism or ZeRO stage 3, all; other replicas ask for what they like.
    The model is a GPTModel of one pipeline stage. `temperature`, `top_k`, `top_p`: see
    `parallel_core.sampling.next_token`. Raises ValueError on all of them where ranks that compute together differ.
    """
    check_sampling(temperature, top_k, top_p)
    _check(model, tokens)
    _check_alike(model, (list(tokens), max_new_tokens, temperature, top_k, top_p, seed, end_of_document))
    generator = np.random.Generator(np.random.Philox(seed))
    was_training = model.training
    new: list[int] = []
    model.set_train(False)
    with no_grad():
        for logits in _logits(model, list(tokens), new, max_new_tokens):
            token = next_token(logits, generator, temperature, top_k, top_p)
            if token == end_of_document:
                break
            new.append(token)
    model.set_train(was_training)
    return new


def _logits(model: nn.Cell, prompt: list[int], new: list[int], count: int) -> Iterator[np.ndarray]:
    """The next token's logits [ids of the tokenizer], `count` times, while the caller appends to `new`."""
    config = model.config
    shards = SequenceLayout.of(config.parallel_config).size
    for _ in range(count):
        seen = (prompt + new)[-config.seq_length :]
        # Sequence parallelism cuts the window into equal shards; what fills the last one comes after all that is seen.
        window = np.array([seen + [0] * (-len(seen) % shards)], np.int32)
        positions = np.arange(window.shape[1], dtype=np.int32)[None]
        logits = model(Tensor(window), Tensor(positions), None)[0, len(seen) - 1].contiguous()
        if model.parallel_output:
            logits = parallel_state.get_tensor_model_parallel_group().all_gather(logits, axis=0)
        # Rows beyond the tokenizer's ids only pad the table.
        yield logits.asnumpy()[: config.unpadded_vocab_size].astype(np.float32)


def _check(model: nn.Cell, tokens: Sequence[int]) -> None:
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if stages > 1:
        raise ValueError(
            f"--pipeline-model-parallel-size {stages}: text is generated on one pipeline stage; use 1, which loads any "
            f"checkpoint"
        )
    context = parallel_state.get_context_parallel_world_size()
    if context > 1:
        raise ValueError(
            f"--context-parallel-size {context}: text is generated on whole sequences; use 1, which loads any "
            f"checkpoint"
        )
    if not tokens:
        raise ValueError("--prompt: needs at least one token")
    ids = model.config.unpadded_vocab_size
    wrong = [token for token in tokens if not 0 <= token < ids]
    if wrong:
        raise ValueError(f"--prompt: token {wrong[0]} is not among the model's {ids} ids; is it another tokenizer's?")


def _check_alike(model: nn.Cell, asked: Sequence[Any]) -> None:
    """A forward of one text needs the same forward on all ranks that have a part in it."""
    gathers_weights = any(parameter.meta.is_cut for parameter in model.trainable_params())
    all_together = gathers_weights or parallel_state.get_expert_model_parallel_world_size() > 1
    group = parallel_state.get_world_group() if all_together else parallel_state.get_tensor_model_parallel_group()
    digest = np.frombuffer(sha256(repr(asked).encode()).digest(), np.int32)[None]
    digests = group.all_gather(Tensor(digest), axis=0).asnumpy()
    if (digests != digests[0]).any():
        raise ValueError(
            "generate: ranks that compute a text together ask for different ones (tokens, lengths or ways of drawing); "
            "call it alike on all of them"
        )
