"""Rules of the network's shape and numerics."""

from collections.abc import Iterator
from math import ceil

from parallel_core.config.hybrid import EXPERTS, LETTERS, MAMBA
from parallel_core.config.notations import wrong_pattern
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.partition import chunk_layers


def window_pattern_fits(config: Sections) -> Iterator[Finding]:
    """Check --window-attn-skip-freq, where it is given: a number from 1 on, or a list with a 0 or 1 for each layer."""
    window, layers = config.model_config.sliding_window, config.model_config.num_layers
    for rule in wrong_pattern(window.skip_freq, layers, "all", "window"):
        yield window.breaks("skip_freq", rule, "change it")


def heads_divide(config: Sections) -> Iterator[Finding]:
    model, parallel = config.model_config, config.parallel_config
    heads, groups, size = model.num_attention_heads, model.num_query_groups, parallel.tensor_model_parallel_size
    tensor, is_padded = f"--tensor-model-parallel-size {size}", parallel.unaligned_linear and groups >= size
    if heads % size and not is_padded:
        yield model.breaks("num_attention_heads", f"must be a multiple of {tensor}")
    if heads % groups:
        yield model.breaks("num_query_groups", f"must divide --num-attention-heads {heads}")
    elif groups % size and size % groups and not is_padded:
        yield model.breaks("num_query_groups", f"must be a multiple or a divisor of {tensor}")
    elif size > groups and 2 * model.kv_channels % (size // groups):
        rule = f"which must divide twice the head size {model.kv_channels}"
        yield model.breaks("num_query_groups", f"is shared by {size // groups} of {tensor} ranks, {rule}")


def norms_stand_somewhere(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if model.use_pre_norm:
        return
    if not model.use_sandwich_norm:
        yield model.needs("use_pre_norm", "--use-sandwich-norm: else nothing is normed")
    for name in ("apply_residual_connection_post_norm", "fp32_residual_connection"):
        if getattr(model, name):
            yield model.clashes(name, "--no-pre-norm")


def norms_of_all_heads_are_whole(config: Sections) -> Iterator[Finding]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    if not model.qk_layernorm or model.qk_norm_type == "per_head" or model.multi_latent_attention.enabled:
        return
    if model.normalization == "LayerNorm":
        yield model.needs("qk_norm_type", "--normalization RMSNorm", "change one of them")
    if model.num_query_groups % size:
        rule = f"must be a multiple of --tensor-model-parallel-size {size}, whose ranks norm all keys together"
        yield model.breaks("num_query_groups", rule)


def only_gated_activations_are_limited(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    for name, section, neutral in (
        ("activation_func_clamp_value", model, 0.0),
        ("glu_linear_offset", model, 0.0),
        ("gate", model.scales, 1.0),
    ):
        if (getattr(section, name) or 0.0) != neutral and not model.gated_linear_unit:
            needed = f"a gated activation (--swiglu, --geglu, --quick-geglu), not --hidden-act {model.hidden_act}"
            yield section.needs(name, needed, "change one of them")


def head_size_is_whole(config: Sections) -> Iterator[Finding]:
    model, heads = config.model_config, config.model_config.num_attention_heads
    by_heads = not model.multi_latent_attention.enabled and model.hidden_size % heads
    if by_heads and model.kv_channels == model.hidden_size // heads:
        rule = f"must be a multiple of --num-attention-heads {heads}"
        yield model.breaks("hidden_size", rule, "change one of them or give --kv-channels")


def vocabulary_divides(config: Sections) -> Iterator[Finding]:
    model, size = config.model_config, config.parallel_config.tensor_model_parallel_size
    if model.vocab_size % size:
        yield model.breaks("vocab_size", f"must be a multiple of --tensor-model-parallel-size {size}")


def vocabulary_fits(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    null_tokenizer_adds = config.dataset_config.tokenizer_type == "NullTokenizer"
    if model.vocab_size < model.unpadded_vocab_size - null_tokenizer_adds:
        rule = f"must not be smaller than the vocabulary, {model.unpadded_vocab_size}"
        yield model.breaks("vocab_size", rule, "raise it or leave it out")


def positions_reach(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if model.max_position_embeddings < model.seq_length:
        rule = f"must be at least --seq-length {model.seq_length}"
        yield model.breaks("max_position_embeddings", rule, "raise it, or lower --seq-length")


def half_precision_flags(config: Sections) -> Iterator[Finding]:
    model, precision = config.model_config, config.training_config.precision
    if model.fp16_lm_cross_entropy and not precision.fp16:
        yield model.needs("fp16_lm_cross_entropy", "--fp16", "add it or leave this out")
    if model.fp32_residual_connection and not (precision.fp16 or precision.bf16):
        missing = "--fp16 or --bf16, the residual is float32 anyway"
        yield model.needs("fp32_residual_connection", missing, "leave it out")


def types_agree(config: Sections) -> Iterator[Finding]:
    """Check types, unless both --bf16 and --fp16 are given: with one of these flags the compute type is the flag's;
    weights and initial embeddings are float32 or of the compute type."""
    model, precision = config.model_config, config.training_config.precision
    if precision.bf16 and precision.fp16:
        return
    for flag, is_on, kind in (("--bf16", precision.bf16, "bfloat16"), ("--fp16", precision.fp16, "float16")):
        if is_on and model.compute_dtype != kind:
            yield model.clashes("compute_dtype", flag)
            return
    kept = ["params_dtype"] + ["embedding_init_dtype"] * (model.embedding_init_dtype != model.params_dtype)
    for name in kept:
        if getattr(model, name) not in ("float32", model.compute_dtype):
            yield model.breaks(name, f"must be float32 or the type that is computed in, {model.compute_dtype}")


def _rotating_channels(config: Sections) -> tuple[int, int]:
    """The number of a head's channels that rotate, and of those that the rotating share is a share of."""
    model = config.model_config
    latent = model.multi_latent_attention
    width = latent.qk_pos_emb_head_dim if latent.enabled else model.kv_channels
    return 2 * ceil(int(width * model.rotating_share) / 2), width


def rotating_channels_pair(config: Sections) -> Iterator[Finding]:
    model, latent = config.model_config, config.model_config.multi_latent_attention
    if not model.rotates:
        return
    channels, width = _rotating_channels(config)
    if model.rotating_share == 1 and width % 2:
        rule = "must be even: channels of a head rotate in pairs"
        if latent.enabled:
            yield latent.breaks("qk_pos_emb_head_dim", rule, "change it")
        else:
            yield model.breaks("kv_channels", rule, "change it or the heads")
    elif not 0 < channels <= width:
        rule = f"lets {channels} of {width} channels of a head rotate, in pairs: some must, and not more"
        other = "--qk-pos-emb-head-dim" if latent.enabled else "--kv-channels or the heads"
        yield model.breaks("rotary_percent", rule, f"change it or {other}")


def latent_attention_stands_alone(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    for name, rule in (
        ("group_query_attention", "every head has its own keys there"),
        ("rotary_interleaved", "its pairs are neighbours already"),
        ("rotary_seq_len_interpolation_factor", "its positions are stretched by --rotary-scaling-factor"),
    ):
        if model.multi_latent_attention.enabled and getattr(model, name):
            yield model.clashes(name, f"--multi-latent-attention: {rule}")


def scores_can_be_clipped(config: Sections) -> Iterator[Finding]:
    """Check --qk-clip and the log of largest scores: neither goes with --compress-ratios or the attention variant dsa;
    --qk-clip does not go with adapters, and with --qk-layernorm only in latent attention."""
    model, clip = config.model_config, config.model_config.qk_clip
    for name in (name for name in ("enabled", "log_largest") if getattr(clip, name)):
        for other, holds in (
            ("--compress-ratios", model.compressed_attention.enabled),
            ("--experimental-attention-variant dsa", model.sparse_attention.enabled),
        ):
            if holds:
                yield clip.clashes(name, f"{other}, whose scores are not told")
    if clip.enabled and model.qk_layernorm and not model.multi_latent_attention.enabled:
        yield clip.clashes("enabled", "--qk-layernorm, which undoes what scales queries and keys")
    if clip.enabled and config.lora_config.use_lora:
        yield clip.clashes("enabled", "adapters, beside which weights stay as they are")


def sparse_attention_fits(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    sparse, latent = model.sparse_attention, model.multi_latent_attention
    if not sparse.enabled or model.compressed_attention.enabled:
        return
    if not latent.enabled:
        yield sparse.needs("variant", "--multi-latent-attention")
        return
    if sparse.dsa_indexer_loss_coeff is None:
        yield sparse.needs("variant", "--dsa-indexer-loss-coeff: without its loss the indexer learns nothing")
    size = sparse.dsa_indexer_head_dim
    if size < latent.qk_pos_emb_head_dim:
        rule = f"must be at least --qk-pos-emb-head-dim {latent.qk_pos_emb_head_dim}: so many of its channels rotate"
        yield sparse.breaks("dsa_indexer_head_dim", rule, "change it")
    yield from _choices_are_made(config)
    for other, value, rule in (
        ("--reset-attention-mask", config.dataset_config.reset_attention_mask, "only causal order is known there"),
        ("--sliding-window", model.sliding_window.size, "the indexer chooses the keys"),
        ("--pre-tockens", model.fa_config.has_band and model.fa_config.pre_tokens < model.seq_length, "so does it"),
        ("--attn-logit-softcapping", model.scales.attention_cap, "scores are not capped there"),
        ("--position-embedding-type alibi", model.position_embedding_type == "alibi", "scores have no bias there"),
    ):
        if value:
            rule = f"does not go with --experimental-attention-variant {sparse.variant}: {rule}"
            yield Finding(other, None if value is True else value, rule, "leave one of them out")


def _choices_are_made(config: Sections) -> Iterator[Finding]:
    """Check layers that share a choice of keys: pattern, shortcuts, at most 65536 tokens where one begins a stage."""
    model, sparse = config.model_config, config.model_config.sparse_attention
    pattern = sparse.index_topk_pattern
    if pattern is not None and (len(pattern) != model.num_layers or {*pattern} - {*"FS"} or pattern[0] == "S"):
        rule = f"must have a letter, F or S, for each of --num-layers {model.num_layers}, and F first"
        yield sparse.breaks("index_topk_pattern", rule, "change it")
        return
    shared = [layer for layer in range(model.num_layers) if sparse.is_shared(layer)]
    if shared and config.moe_config.moe_shortcut_connected:
        rule = "does not go with shortcut-connected experts: which of a layer's two choices would be shared is not said"
        yield sparse.breaks("dsa_indexer_topk_freq", rule, "leave it out")
    first = [chunk[0] for row in chunk_layers(model, config.parallel_config) for chunk in row if len(chunk)]
    if model.seq_length > 65536 and {*first} & {*shared}:
        rule = "must be at most 65536 where a pipeline stage begins with a layer that shares a choice of keys"
        yield model.breaks("seq_length", rule, "change the stages by --num-layer-list")


def residual_weights_are_two(config: Sections) -> Iterator[Finding]:
    scales = config.model_config.scales
    for name in ("attention_residual", "linear_attention_residual", "mlp_residual"):
        weights = getattr(scales, name)
        if weights is not None and (len(weights) != 2 or min(weights) <= 0):
            rule = "must be two numbers above 0: the residual's, and of what is added to it"
            yield scales.breaks(name, rule, "change it")


def linear_attention_fits(config: Sections) -> Iterator[Finding]:
    """Check gated delta nets and lightning attention: --linear-attention-freq gives their layers; tensor x context
    parallel size divides their heads (delta nets' key heads, which divide value heads); no --reset-attention-mask."""
    model, sizes = config.model_config, config.model_config.linear_attention
    if not (model.has_delta_nets or model.has_lightning_attention):
        return
    if sizes.linear_attention_freq is None:
        missing = "--linear-attention-freq, which says which layers have attention"
        yield model.sparse_attention.needs("variant", missing)
    for rule in wrong_pattern(sizes.linear_attention_freq, model.num_layers, "attention", "a state"):
        yield sizes.breaks("linear_attention_freq", rule, "change it")
    if model.has_delta_nets and sizes.linear_num_value_heads % sizes.linear_num_key_heads:
        rule = f"must be a multiple of --linear-num-key-heads {sizes.linear_num_key_heads}"
        yield sizes.breaks("linear_num_value_heads", rule)
    tensor, context = (
        config.parallel_config.tensor_model_parallel_size,
        config.parallel_config.context_parallel_size,
    )
    heads, of = (sizes.linear_num_key_heads, sizes) if model.has_delta_nets else (model.num_attention_heads, model)
    if heads % (tensor * context):
        rule = f"must be a multiple of --tensor-model-parallel-size {tensor} x --context-parallel-size {context}"
        yield of.breaks("linear_num_key_heads" if model.has_delta_nets else "num_attention_heads", rule)
    if config.dataset_config.reset_attention_mask:
        rule = f"does not go with {model.sparse_attention.variant}: states go on over a document's end"
        yield Finding("--reset-attention-mask", None, rule, "leave one of them out")


def hybrid_fits(config: Sections) -> Iterator[Finding]:
    model, hybrid, moe = config.model_config, config.model_config.hybrid, config.moe_config
    if hybrid.layer_pattern is None:
        return
    pattern = hybrid.layer_pattern
    if not pattern or {*pattern} - {*LETTERS}:
        yield hybrid.breaks("layer_pattern", f"must be of the letters {' '.join(LETTERS)}", "change it")
        return
    if len(pattern) != model.num_layers:
        yield hybrid.breaks("layer_pattern", f"has {len(pattern)} letters, must have --num-layers {model.num_layers}")
    elif any(moe.has_experts(layer) != (letter == EXPERTS) for layer, letter in enumerate(pattern)):
        yield hybrid.breaks(
            "layer_pattern", "must have an E for each layer that --num-experts gives experts, and for no other"
        )
    if model.multi_token_prediction.depths:
        yield hybrid.clashes("layer_pattern", "multi-token prediction")


def state_spaces_fit(config: Sections) -> Iterator[Finding]:
    hybrid, parallel = config.model_config.hybrid, config.parallel_config
    if not (hybrid.enabled and hybrid.has(MAMBA)):
        return
    for name, parts in (("mamba_multipliers", 5), ("side_by_side_weights", 2)):
        given = getattr(hybrid, name)
        if given is not None and (len(given) != parts or min(given) <= 0):
            yield hybrid.breaks(name, f"must be {parts} numbers above 0", "change it")
    groups, ranks = hybrid.mamba_num_groups, parallel.tensor_model_parallel_size * parallel.context_parallel_size
    if hybrid.mamba_num_heads % groups:
        yield hybrid.breaks("mamba_num_heads", f"must be a multiple of --mamba-num-groups {groups}")
    if groups % ranks:
        rule = f"must be a multiple of --tensor-model-parallel-size x --context-parallel-size, {ranks}"
        yield hybrid.breaks("mamba_num_groups", rule)
    if config.dataset_config.reset_attention_mask:
        rule = "does not go with state spaces: they go on over a document's end"
        yield Finding("--reset-attention-mask", None, rule, "leave one of them out")


def hyper_connections_fit(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if not model.hyper_connections.enabled:
        return
    for name, section, default in (
        ("hidden_dropout_rate", model, 0.0),
        ("use_sandwich_norm", model, False),
        ("apply_residual_connection_post_norm", model, False),
        ("residual", model.scales, 1.0),
        ("layer_pattern", model.hybrid, None),
        ("moe_shortcut_connected", config.moe_config, False),
    ):
        if getattr(section, name) != default:
            fix = "use 0" if name == "hidden_dropout_rate" else "leave one of them out"
            rule = "--enable-mhc: streams are written by learnt weights alone"
            yield section.clashes(name, rule, fix)


def output_gate_fits(config: Sections) -> Iterator[Finding]:
    model = config.model_config
    if model.attention_output_gate and model.multi_latent_attention.enabled:
        yield model.clashes("attention_output_gate", "--multi-latent-attention: its linears have no gates")


def longrope_has_its_factors(config: Sections) -> Iterator[Finding]:
    scaling = config.model_config.rope_scaling
    if scaling.type != "longrope":
        return
    pairs = _rotating_channels(config)[0] // 2
    for name, factors in (("long_factor", scaling.long_factor), ("short_factor", scaling.short_factor)):
        if factors is None:
            yield scaling.needs("type", "--long-factor and --short-factor", "add them")
            return
        if len(factors) != pairs or min(factors) <= 0:
            rule = f"must be {pairs} numbers above 0, one for each pair of channels that rotates"
            yield scaling.breaks(name, rule, "change it", value=len(factors))


def stretched_positions_rotate(config: Sections) -> Iterator[Finding]:
    scaling, model = config.model_config.rope_scaling, config.model_config
    if scaling.type is not None and not model.rotates:
        needed = f"--position-embedding-type rope, not {model.position_embedding_type}"
        yield scaling.needs("type", needed, "change one of them")
    if scaling.type == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield scaling.breaks(
            "high_freq_factor", f"must exceed --low-freq-factor {scaling.low_freq_factor:g}", "raise it"
        )


def further_tokens_are_embedded_alike(config: Sections) -> Iterator[Finding]:
    """Check that with multi-token prediction (MTP) the embedding has no learned positions and no norm."""
    model, further = config.model_config, config.model_config.multi_token_prediction
    if further.depths and model.position_embedding_type == "learned_absolute":
        yield further.clashes("num_layers", "learned positions", "use --position-embedding-type rope")
    if further.depths and model.embedding_layernorm:
        yield further.clashes("num_layers", "--embed-layernorm")
