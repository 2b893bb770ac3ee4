"""Rules of how the work is split: pipeline, context and sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_core.config.all import AllConfig


def stages_have_layers(config: AllConfig) -> Iterator[str]:
    layers, stages = config.model_config.num_layers, config.parallel_config.pipeline_model_parallel_size
    if layers < stages:
        yield (
            f"--pipeline-model-parallel-size {stages}: must not exceed --num-layers {layers}; "
            "lower it, or every stage would not have a layer"
        )
    if config.parallel_config.standalone_embedding_stage and stages < 2:
        yield "--standalone-embedding-stage: needs --pipeline-model-parallel-size 2 or more; raise it or leave it out"


def _counted_layers(config: AllConfig) -> int:
    """What is divided over stages and chunks: the layers, and embedding and loss where they count as one."""
    parallel = config.parallel_config
    return (
        config.model_config.num_layers
        + parallel.account_for_embedding_in_pipeline_split
        + parallel.account_for_loss_in_pipeline_split
    )


def chunks_divide(config: AllConfig) -> Iterator[str]:
    parallel, layers = config.parallel_config, _counted_layers(config)
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size
    per_chunk = parallel.num_layers_per_virtual_pipeline_stage
    flag = (
        f"--num-layers-per-virtual-pipeline-stage {per_chunk}"
        if per_chunk is not None
        else f"--virtual-pipeline-model-parallel-size {chunks}"
    )
    if per_chunk is None and chunks in (None, 1):
        return
    counted = per_chunk if per_chunk is not None else chunks
    if stages < 2:
        yield f"{flag}: needs --pipeline-model-parallel-size 2 or more; raise it or leave this out"
    elif parallel.num_layer_list is not None:
        return
    elif layers % (stages * (counted or 1)):
        yield (
            f"{flag}: times --pipeline-model-parallel-size {stages} must divide --num-layers {layers}; "
            "change one of them"
        )
    elif per_chunk is not None and chunks is not None and per_chunk * chunks * stages != layers:
        yield (
            f"{flag}: times --virtual-pipeline-model-parallel-size {chunks} and stages {stages} is not --num-layers "
            f"{layers}; leave one of them out"
        )


def interleaving_has_whole_rounds(config: AllConfig) -> Iterator[str]:
    parallel, data = config.parallel_config, config.dataset_config
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size
    if stages == 1 or chunks in (None, 1) or parallel.microbatch_group_size_per_virtual_pipeline_stage is not None:
        return
    if data.micro_batch_num % stages:
        yield (
            f"--global-batch-size {data.global_batch_size}: makes {data.micro_batch_num} micro-batches, which "
            f"interleaving needs to be a multiple of --pipeline-model-parallel-size {stages}; change it or "
            "--micro-batch-size"
        )


def _flat(entries: list[Any]) -> list[int]:
    return [number for entry in entries for number in (entry if isinstance(entry, list) else [entry])]


def layer_list_adds_up(config: AllConfig) -> Iterator[str]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    entries = parallel.num_layer_list
    if entries is None:
        return
    stages = parallel.pipeline_model_parallel_size
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    nested = any(isinstance(entry, list) for entry in entries)
    widths = [len(entry) for entry in entries if isinstance(entry, list)]
    if nested and (len(entries) != chunks or widths != [stages] * chunks):
        yield (
            f"--num-layer-list {entries}: needs {chunks} lists (virtual stages) of {stages} numbers "
            "(--pipeline-model-parallel-size)"
        )
    if not nested and len(entries) != stages:
        yield f"--num-layer-list {entries}: needs {stages} numbers, one for each stage (--pipeline-model-parallel-size)"
    if sum(_flat(entries)) != layers:
        yield (
            f"--num-layer-list {entries}: adds up to {sum(_flat(entries))}, must add up to --num-layers {layers}; "
            "change one of them"
        )


def end_stages_leave_the_rest_even(config: AllConfig) -> Iterator[str]:
    parallel = config.parallel_config
    first, last = parallel.decoder_first_pipeline_num_layers, parallel.decoder_last_pipeline_num_layers
    if first is None and last is None:
        return
    middle = parallel.pipeline_model_parallel_size - (first is not None) - (last is not None)
    rest = config.model_config.num_layers - (first or 0) - (last or 0)
    flag = (
        f"--decoder-first-pipeline-num-layers {first}"
        if first is not None
        else f"--decoder-last-pipeline-num-layers {last}"
    )
    if middle < 0 or rest < 0 or (rest % middle if middle else rest):
        yield (
            f"{flag}: leaves {rest} layers for {middle} stages, which must divide evenly; change it, the other end "
            "or --num-layers"
        )


def noop_layers_exist(config: AllConfig) -> Iterator[str]:
    for layer in config.parallel_config.noop_layers or ():
        if not 0 <= layer < config.model_config.num_layers:
            yield (
                f"--noop-layers {layer}: must be between 0 and --num-layers {config.model_config.num_layers} - 1; "
                "remove it"
            )


def sequence_divides(config: AllConfig) -> Iterator[str]:
    parallel, length = config.parallel_config, config.model_config.seq_length
    tensor, context = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    ring = context > 1 and parallel.context_parallel_algo != "ulysses_cp_algo"
    pieces = context * (2 if ring else 1)
    if length % pieces:
        yield (
            f"--seq-length {length}: must be a multiple of {'twice ' if ring else ''}--context-parallel-size "
            f"{context}; change one of them"
        )
    elif parallel.sequence_parallel and length // context % tensor:
        yield (
            f"--seq-length {length}: what a context-parallel rank holds, {length // context}, must be a multiple of "
            f"--tensor-model-parallel-size {tensor} with --sequence-parallel; change one of them"
        )


def ulysses_divides(config: AllConfig) -> Iterator[str]:
    parallel, heads = config.parallel_config, config.model_config.num_attention_heads
    context, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    if context == 1 or parallel.context_parallel_algo == "megatron_cp_algo":
        return
    degree = context
    if parallel.context_parallel_algo == "hybrid_cp_algo":
        if parallel.ulysses_degree_in_cp is None:
            yield "--context-parallel-algo hybrid_cp_algo: needs --ulysses-degree-in-cp; add it"
            return
        degree = parallel.ulysses_degree_in_cp
        if context % degree or degree == context or degree == 1:
            yield (
                f"--ulysses-degree-in-cp {degree}: must be a proper divisor of --context-parallel-size {context}; "
                "change it or use ulysses_cp_algo or megatron_cp_algo"
            )
    if heads % (tensor * degree):
        yield (
            f"--num-attention-heads {heads}: must be a multiple of --tensor-model-parallel-size {tensor} x ulysses "
            f"degree {degree}; change one of them"
        )


RULES = (
    stages_have_layers,
    chunks_divide,
    interleaving_has_whole_rounds,
    layer_list_adds_up,
    end_stages_leave_the_rest_even,
    noop_layers_exist,
    sequence_divides,
    ulysses_divides,
)
