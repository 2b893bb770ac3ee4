"""The parameters that a pipeline stage holds, without building a model.

h hidden, f feed-forward size, n heads, g key/value groups, d head size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallel_core.buffers import BufferPlan, plan_buffers
from parallel_core.partition import chunk_layers
from parallel_core.sharding import Cut, ShardSpec, place

if TYPE_CHECKING:
    from parallel_core.config import AllConfig, ModelConfig

WORD_EMBEDDINGS = "embedding.word_embeddings.weight"


def _sequence(config: ModelConfig) -> str | None:
    """Where hidden states are cut along the sequence, gradients of what is applied to them are partial sums over tp."""
    return "tp" if config.parallel_config.sequence_parallel else None


def _norm(config: ModelConfig, name: str, size: int, partial_over: str | None) -> Iterator[ShardSpec]:
    for part in ("weight", "bias")[: 1 + (config.normalization == "LayerNorm")]:
        yield ShardSpec(name=f"{name}.{part}", shape=(size,), partial_over=partial_over)


def _column(name: str, inputs: int, outputs: int, bias: bool | None, parts: int = 1) -> Iterator[ShardSpec]:
    yield ShardSpec(name=f"{name}.weight", shape=(outputs, inputs), cuts=(Cut(0, parts=parts),))
    if bias:
        yield ShardSpec(name=f"{name}.bias", shape=(outputs,), cuts=(Cut(0, parts=parts),))


def _row(config: ModelConfig, name: str, inputs: int, bias: bool | None) -> Iterator[ShardSpec]:
    yield ShardSpec(name=f"{name}.weight", shape=(config.hidden_size, inputs), cuts=(Cut(1),))
    if bias:
        yield ShardSpec(name=f"{name}.bias", shape=(config.hidden_size,), partial_over=_sequence(config))


def layer_parameters(config: ModelConfig, layer: int) -> Iterator[ShardSpec]:
    """Those of one layer, 0-based, in the model's order."""
    hidden, size, on_pieces = config.hidden_size, config.kv_channels, _sequence(config)
    heads, groups = config.num_attention_heads, config.num_query_groups
    parts = 2 if config.gated_linear_unit else 1
    name = f"decoder.layers.{layer}"
    yield from _norm(config, f"{name}.input_layernorm", hidden, on_pieces)
    attention = f"{name}.self_attention"
    yield from _column(f"{attention}.linear_qkv", hidden, (heads + 2 * groups) * size, config.qkv_has_bias)
    if config.qk_layernorm:
        yield from _norm(config, f"{attention}.q_layernorm", size, "tp")
        yield from _norm(config, f"{attention}.k_layernorm", size, "tp")
    yield from _row(config, f"{attention}.linear_proj", heads * size, config.out_proj_has_bias)
    yield from _norm(config, f"{name}.pre_mlp_layernorm", hidden, on_pieces)
    yield from _column(f"{name}.mlp.linear_fc1", hidden, config.ffn_hidden_size * parts, config.mlp_has_bias, parts)
    yield from _row(config, f"{name}.mlp.linear_fc2", config.ffn_hidden_size, config.mlp_has_bias)
    if config.use_sandwich_norm:
        yield from _norm(config, f"{name}.post_attention_layernorm", hidden, on_pieces)
        yield from _norm(config, f"{name}.post_mlp_layernorm", hidden, on_pieces)


def chunk_parameters(config: AllConfig, stage: int, chunk: int) -> Iterator[ShardSpec]:
    """Those of one of a stage's chunks, in the model's order."""
    model, parallel = config.model_config, config.parallel_config
    layers = chunk_layers(model, parallel)
    is_first = stage == chunk == 0
    is_last = chunk == len(layers) - 1 and stage == parallel.pipeline_model_parallel_size - 1
    table = (model.vocab_size, model.hidden_size)
    shared_over = None if model.untie_embeddings_and_output_weights else "embedding"
    if is_first:
        yield ShardSpec(name=WORD_EMBEDDINGS, shape=table, cuts=(Cut(0),), shared_over=shared_over)
        if model.position_embedding_type == "learned_absolute":
            positions = (model.max_position_embeddings, model.hidden_size)
            yield ShardSpec(name="embedding.position_embeddings.weight", shape=positions)
    for layer in layers[chunk][stage]:
        if layer not in (parallel.noop_layers or ()):
            yield from layer_parameters(model, layer)
    if not is_last:
        return
    if model.use_final_norm:
        yield from _norm(model, "decoder.final_layernorm", model.hidden_size, _sequence(model))
    if model.untie_embeddings_and_output_weights:
        yield ShardSpec(name="output_layer.weight", shape=table, cuts=(Cut(0),))
    elif not is_first:
        yield ShardSpec(name=WORD_EMBEDDINGS, shape=table, cuts=(Cut(0),), shared_over=shared_over)


def stage_parameters(config: AllConfig, stage: int) -> list[ShardSpec]:
    """Those of a stage, chunk after chunk; a last stage's copy of a tied embedding included."""
    chunks = len(chunk_layers(config.model_config, config.parallel_config))
    return [spec for chunk in range(chunks) for spec in chunk_parameters(config, stage, chunk)]


def stage_buffers(config: AllConfig, stage: int) -> list[BufferPlan]:
    """The flat buffers that a rank's parameters and gradients lie in."""
    coordinates = {"tp": (0, config.parallel_config.tensor_model_parallel_size)}
    return plan_buffers([(place(spec, coordinates), "float32") for spec in stage_parameters(config, stage)])


def buffer_elements(config: AllConfig, stage: int) -> int:
    """Elements of the flat buffers that a rank's parameters (or gradients) lie in."""
    return sum(plan.size for plan in stage_buffers(config, stage))
