"""Rules of attention over compressed entries."""

from collections.abc import Iterator

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding


def compressed_attention_fits(config: Sections) -> Iterator[Finding]:
    model, given = config.model_config, config.model_config.compressed_attention
    latent, sparse = model.multi_latent_attention, model.sparse_attention
    if not given.enabled:
        return
    yield from _sizes_of_compressed_attention(config)
    if latent.q_lora_rank is None or not latent.enabled:
        yield given.needs("ratios", "--multi-latent-attention and --q-lora-rank: queries have a latent there")
    indexed = any(given.has_indexer(layer) for layer in range(model.num_layers))
    if indexed and not sparse.enabled:
        yield given.needs("ratios", "--enable-dsa-indexer, which chooses among entries of 4 tokens")
    for other, value, rule in (
        ("--reset-attention-mask", config.dataset_config.reset_attention_mask, "only causal order is known there"),
        ("--sliding-window", model.sliding_window.size, "its window is --sliding-window-size"),
        ("--attn-logit-softcapping", model.scales.attention_cap, "scores are not capped there"),
        ("--query-pre-attn-scalar", model.scales.attention, "scores are divided by the root of a head's size"),
        ("--key-multiplier", model.scales.key if model.scales.key != 1 else None, "so are they without a factor"),
    ):
        if value:
            rule = f"does not go with --compress-ratios: {rule}"
            yield Finding(other, None if value is True else value, rule, "leave one of them out")


def _sizes_of_compressed_attention(config: Sections) -> Iterator[Finding]:
    model, given, parallel = config.model_config, config.model_config.compressed_attention, config.parallel_config
    latent, size = model.multi_latent_attention, parallel.tensor_model_parallel_size
    there = [layer for layer in range(model.num_layers) if layer not in (parallel.noop_layers or ())]
    if len(given.ratios or ()) <= max(there, default=0):
        rule = f"must have a number for each of --num-layers {model.num_layers}"
        yield given.breaks("ratios", rule, "add some", value=" ".join(map(str, given.ratios or ())))
    if min(given.ratios or (0,)) < 0:
        yield given.breaks("ratios", "must be at least 0", "change it", value=min(given.ratios or (0,)))
    width, groups = model.num_attention_heads * latent.qk_head_dim, given.output_groups
    if width % groups:
        rule = f"must divide the width of all heads, {model.num_attention_heads} x --qk-head-dim {latent.qk_head_dim}"
        yield given.breaks("output_groups", rule)
    if groups % size:
        yield given.breaks("output_groups", f"must be a multiple of --tensor-model-parallel-size {size}")
    smallest = min(latent.qk_head_dim, model.sparse_attention.dsa_indexer_head_dim)
    if latent.qk_pos_emb_head_dim > smallest:
        rule = f"rotate: must be at most --qk-head-dim and the indexer's head size, {smallest}"
        yield latent.breaks("qk_pos_emb_head_dim", rule)
