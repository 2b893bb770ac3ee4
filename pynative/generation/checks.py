"""Whether texts can be generated as they are asked for."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from pynative import parallel_state


def check(model: nn.Cell, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise ValueError where a model of this layout, or these prompts, cannot be continued."""
    context = parallel_state.get_context_parallel_world_size()
    if context > 1:
        raise ValueError(
            f"--context-parallel-size {context}: text is generated on whole sequences; use 1, which loads any "
            f"checkpoint"
        )
    chunks = parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1
    if chunks > 1:
        raise ValueError(
            f"--virtual-pipeline-model-parallel-size {chunks}: text is generated on stages of one chunk; leave it out, "
            f"any layout loads any checkpoint"
        )
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens {max_new_tokens}: must be at least 1")
    if not prompts or not all(prompts):
        raise ValueError("--prompt: needs at least one token")
    ids = model.config.unpadded_vocab_size
    wrong = [token for prompt in prompts for token in prompt if not 0 <= token < ids]
    if wrong:
        raise ValueError(f"--prompt: token {wrong[0]} is not among the model's {ids} ids; is it another tokenizer's?")


def check_alike(model: nn.Cell, asked: Sequence[Any]) -> None:
    """A forward of one batch needs the same forward on all ranks that have a part in it."""
    gathers_weights = any(parameter.meta.is_cut for parameter in model.trainable_params())
    if gathers_weights or parallel_state.get_expert_model_parallel_world_size() > 1:
        group = parallel_state.get_world_group()
    else:
        group = parallel_state.get_model_parallel_group()
    digest = np.frombuffer(sha256(repr(asked).encode()).digest(), np.int32)[None]
    digests = group.all_gather(Tensor(digest), axis=0).asnumpy()
    if (digests != digests[0]).any():
        raise ValueError(
            "generate: ranks that compute a text together ask for different ones (tokens, lengths or ways of drawing); "
            "call it alike on all of them"
        )
