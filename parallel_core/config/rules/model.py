"""Rules of the network's shape and numerics."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding


def heads_divide(config: Sections) -> Iterator[Finding]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    if model.num_attention_heads % size:
        yield Finding(
            "--num-attention-heads",
            model.num_attention_heads,
            f"must be a multiple of --tensor-model-parallel-size {size}",
            "change one of them",
        )
    if model.num_attention_heads % model.num_query_groups:
        yield Finding(
            "--num-query-groups",
            model.num_query_groups,
            f"must divide --num-attention-heads {model.num_attention_heads}",
            "change one of them",
        )
    elif model.num_query_groups % size and size % model.num_query_groups:
        yield Finding(
            "--num-query-groups",
            model.num_query_groups,
            f"must be a multiple or a divisor of --tensor-model-parallel-size {size}",
            "change one of them",
        )
    elif size > model.num_query_groups and 2 * model.kv_channels % (size // model.num_query_groups):
        yield Finding(
            "--num-query-groups",
            model.num_query_groups,
            f"is shared by {size // model.num_query_groups} of --tensor-model-parallel-size {size} ranks, which must "
            f"divide twice the head size {model.kv_channels}",
            "change one of them",
        )


def head_size_is_whole(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    by_heads = not model.multi_latent_attention.enabled and model.hidden_size % model.num_attention_heads
    if by_heads and model.kv_channels == model.hidden_size // model.num_attention_heads:
        yield Finding(
            "--hidden-size",
            model.hidden_size,
            f"must be a multiple of --num-attention-heads {model.num_attention_heads}",
            "change one of them or give --kv-channels",
        )


def vocabulary_divides(config: Sections) -> Iterator[Finding]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    if model.vocab_size % size:
        rule = f"must be a multiple of --tensor-model-parallel-size {size}"
        yield Finding("--padded-vocab-size", model.vocab_size, rule, "change one of them")


def vocabulary_fits(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    null_tokenizer_adds = config.dataset_config.tokenizer_type == "NullTokenizer"
    if model.vocab_size < model.unpadded_vocab_size - null_tokenizer_adds:
        yield Finding(
            "--padded-vocab-size",
            model.vocab_size,
            f"must not be smaller than the vocabulary, {model.unpadded_vocab_size}",
            "raise it or leave it out",
        )


def positions_reach(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if model.max_position_embeddings < model.seq_length:
        yield Finding(
            "--max-position-embeddings",
            model.max_position_embeddings,
            f"must be at least --seq-length {model.seq_length}",
            "raise it",
        )


def half_precision_flags(config: Sections) -> Iterator[Finding]:
    model, precision = config.model_config, config.training_config.precision
    if model.fp16_lm_cross_entropy and not precision.fp16:
        yield Finding("--fp16-lm-cross-entropy", None, "needs --fp16", "add it or leave this out")
    if model.fp32_residual_connection and not (precision.fp16 or precision.bf16):
        yield Finding(
            "--fp32-residual-connection", None, "needs --fp16 or --bf16, the residual is float32 anyway", "leave it out"
        )


def types_agree(config: Sections) -> Iterator[Finding]:
    """Weights may be kept in float32 beside any type; 16-bit types have one name each."""
    model, precision = config.model_config, config.training_config.precision
    if precision.bf16 and precision.fp16:
        return
    for flag, is_on, kind in (("--bf16", precision.bf16, "bfloat16"), ("--fp16", precision.fp16, "float16")):
        if is_on and model.compute_dtype != kind:
            yield Finding("--compute-dtype", model.compute_dtype, f"does not go with {flag}", "leave one of them out")
            return
    kept = [(model.params_dtype, "--params-dtype")]
    kept += [(model.embedding_init_dtype, "--embedding-dtype")] * (model.embedding_init_dtype != model.params_dtype)
    for kind, flag in kept:
        if kind not in ("float32", model.compute_dtype):
            rule = f"must be float32 or the type that is computed in, {model.compute_dtype}"
            yield Finding(flag, kind, rule, "change one of them")


def _rotating_channels(config: Sections) -> tuple[int, int]:
    """Of a head: those that rotate, and those that may."""
    model = config.model_config
    latent = model.multi_latent_attention
    width = latent.qk_pos_emb_head_dim if latent.enabled else model.kv_channels
    return 2 * ceil(int(width * model.rotating_share) / 2), width


def rotating_channels_pair(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if not model.rotates:
        return
    channels, width = _rotating_channels(config)
    if model.rotating_share == 1 and width % 2:
        of_latent = model.multi_latent_attention.enabled
        flag, fix = ("--qk-pos-emb-head-dim", "change it") if of_latent else ("--kv-channels", "change it or the heads")
        yield Finding(flag, width, "must be even: channels of a head rotate in pairs", fix)
    elif not 0 < channels <= width:
        yield Finding(
            "--rotary-percent",
            model.rotary_percent,
            f"lets {channels} of {width} channels of a head rotate, in pairs: some must, and not more",
            "change it or "
            + ("--qk-pos-emb-head-dim" if model.multi_latent_attention.enabled else "--kv-channels or the heads"),
        )


def latent_attention_stands_alone(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if not model.multi_latent_attention.enabled:
        return
    factor = model.rotary_seq_len_interpolation_factor
    for flag, value, rule in (
        ("--group-query-attention", model.group_query_attention, "every head has its own keys there"),
        ("--rotary-interleaved", model.rotary_interleaved, "its pairs are neighbours already"),
        ("--rotary-seq-len-interpolation-factor", factor, "its positions are stretched by --rotary-scaling-factor"),
    ):
        if value:
            shown = None if value is True else value
            yield Finding(flag, shown, f"does not go with --multi-latent-attention: {rule}", "leave one of them out")


def sparse_attention_fits(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    sparse, latent = model.sparse_attention, model.multi_latent_attention
    if not sparse.enabled:
        return
    flag, both = "--experimental-attention-variant", "leave one of them out"
    if not latent.enabled:
        yield Finding(flag, sparse.variant, "needs --multi-latent-attention", "add it")
        return
    if sparse.dsa_indexer_loss_coeff is None:
        rule = "needs --dsa-indexer-loss-coeff: without its loss the indexer learns nothing"
        yield Finding(flag, sparse.variant, rule, "add it")
    size = sparse.dsa_indexer_head_dim
    if size < latent.qk_pos_emb_head_dim or size & (size - 1):
        rule = f"must be a power of two, of which --qk-pos-emb-head-dim {latent.qk_pos_emb_head_dim} channels rotate"
        yield Finding("--dsa-indexer-head-dim", size, rule, "change it")
    for other, value, rule in (
        ("--context-parallel-size", config.parallel_config.context_parallel_size > 1, "a query chooses among all keys"),
        ("--reset-attention-mask", config.dataset_config.reset_attention_mask, "only causal order is known there"),
        ("--sliding-window", model.sliding_window.size, "the indexer chooses the keys"),
        ("--pre-tockens", model.fa_config.has_band and model.fa_config.pre_tokens < model.seq_length, "so does it"),
        ("--attn-logit-softcapping", model.scales.attention_cap, "scores are not capped there"),
        ("--position-embedding-type alibi", model.position_embedding_type == "alibi", "scores have no bias there"),
    ):
        if value:
            shown = None if value is True else value
            yield Finding(other, shown, f"does not go with {flag} {sparse.variant}: {rule}", both)


def longrope_has_its_factors(config: Sections) -> Iterator[Finding]:
    scaling = config.model_config.rope_scaling
    if scaling.type != "longrope":
        return
    pairs = _rotating_channels(config)[0] // 2
    for flag, factors in (("--long-factor", scaling.long_factor), ("--short-factor", scaling.short_factor)):
        if factors is None:
            yield Finding("--rope-scaling-type", "longrope", "needs --long-factor and --short-factor", "add them")
            return
        if len(factors) != pairs or min(factors) <= 0:
            rule = f"must be {pairs} numbers above 0, one for each pair of channels that rotates"
            yield Finding(flag, len(factors), rule, "change it")


def stretched_positions_rotate(config: Sections) -> Iterator[Finding]:
    scaling, model = config.model_config.rope_scaling, config.model_config
    if scaling.type is not None and not model.rotates:
        yield Finding(
            "--rope-scaling-type",
            scaling.type,
            f"needs --position-embedding-type rope, not {model.position_embedding_type}",
            "change one of them",
        )
    if scaling.type == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield Finding(
            "--high-freq-factor",
            scaling.high_freq_factor,
            f"must exceed --low-freq-factor {scaling.low_freq_factor:g}",
            "raise it",
        )


def further_tokens_are_embedded_alike(config: Sections) -> Iterator[Finding]:
    """The last stage has a copy of the words' embedding alone; learned positions are refused in Megatron, too."""
    model = config.model_config
    depths = model.multi_token_prediction.depths
    if depths and model.position_embedding_type == "learned_absolute":
        yield Finding(
            "--mtp-num-layers", depths, "does not go with learned positions", "use --position-embedding-type rope"
        )
    if depths and model.embedding_layernorm:
        yield Finding("--mtp-num-layers", depths, "does not go with --embed-layernorm", "leave one of them out")


def window_pattern_fits(config: Sections) -> Iterator[Finding]:
    """--window-attn-skip-freq: a number, or of each layer whether it has the window."""
    frequency, layers = config.model_config.sliding_window.skip_freq, config.model_config.num_layers
    if isinstance(frequency, list) and len(frequency) != layers:
        rule = f"has {len(frequency)} entries, must have --num-layers {layers}"
        yield Finding("--window-attn-skip-freq", frequency, rule, "change it")
    if isinstance(frequency, list) and any(entry not in (0, 1) for entry in frequency):
        yield Finding("--window-attn-skip-freq", frequency, "entries must be 0 (all) or 1 (window)", "change it")
    if isinstance(frequency, int) and frequency < 1:
        yield Finding("--window-attn-skip-freq", frequency, "must be at least 1", "change it")


RULES = (
    window_pattern_fits,
    heads_divide,
    head_size_is_whole,
    vocabulary_divides,
    vocabulary_fits,
    positions_reach,
    half_precision_flags,
    types_agree,
    rotating_channels_pair,
    latent_attention_stands_alone,
    sparse_attention_fits,
    longrope_has_its_factors,
    stretched_positions_rotate,
    further_tokens_are_embedded_alike,
)
