"""Rules between sections: functions of the `AllConfig` that yield sentences with flag, value, rule and fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.config.all import AllConfig


def heads_divide(config: AllConfig) -> Iterator[str]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    if model.num_attention_heads % size:
        yield (f"--num-attention-heads {model.num_attention_heads}: must be a multiple of "
               f"--tensor-model-parallel-size {size}; change one of them")
    if model.num_attention_heads % model.num_query_groups:
        yield (f"--num-query-groups {model.num_query_groups}: must divide --num-attention-heads "
               f"{model.num_attention_heads}; change one of them")
    elif model.num_query_groups % size and size % model.num_query_groups:
        yield (f"--num-query-groups {model.num_query_groups}: must be a multiple or a divisor of "
               f"--tensor-model-parallel-size {size}; change one of them")


def widths_divide(config: AllConfig) -> Iterator[str]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    for flag, width in (("--hidden-size", model.hidden_size), ("--ffn-hidden-size", model.ffn_hidden_size),
                        ("--padded-vocab-size", model.vocab_size)):
        if width % size:
            yield f"{flag} {width}: must be a multiple of --tensor-model-parallel-size {size}; change one of them"


def batches_divide(config: AllConfig) -> Iterator[str]:
    data, copies = config.dataset_config, config.parallel_config.data_parallel_size
    samples = data.batch_size * copies
    if data.global_batch_size % samples:
        yield (f"--global-batch-size {data.global_batch_size}: must be a multiple of --micro-batch-size "
               f"{data.batch_size} x data-parallel size {copies} = {samples}; change one of them")
    elif data.micro_batch_num * samples != data.global_batch_size:
        yield (f"--global-batch-size {data.global_batch_size}: differs from --micro-batch-num {data.micro_batch_num} x "
               f"--micro-batch-size {data.batch_size} x data-parallel size {copies}; leave one of them out")


def positions_reach(config: AllConfig) -> Iterator[str]:
    model = config.model_config
    if model.max_position_embeddings < model.seq_length:
        yield (f"--max-position-embeddings {model.max_position_embeddings}: must be at least --seq-length "
               f"{model.seq_length}; raise it")


RULES = (heads_divide, widths_divide, batches_divide, positions_reach)
