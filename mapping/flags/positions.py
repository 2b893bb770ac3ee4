"""Flags: positions."""

from mapping.flags.flag import group, ignored, off, switch, value
from mapping.flags.read import numbers, whole

FLAGS = group(
    "positions",
    value(
        "--position-embedding-type",
        str,
        "learned_absolute",
        "model_config.position_embedding_type",
        choices=("learned_absolute", "rope", "none", "alibi", "yarn", "mrope", "relative", "deepseek4"),
        refuses=dict.fromkeys(("mrope", "relative", "deepseek4"), "use learned_absolute, rope, alibi or none"),
    ),
    switch("--use-rotary-position-embeddings", "model_config.use_rotary_embedding"),
    value("--rotary-base", float, 10000.0, "model_config.rotary_base"),
    value("--rotary-percent", float, 1.0, "model_config.rotary_percent"),
    switch("--rotary-interleaved", "model_config.rotary_interleaved"),
    value("--rotary-seq-len-interpolation-factor", float, None, "model_config.rotary_seq_len_interpolation_factor"),
    off("--no-rope-fusion", "apply_rope_fusion", "model_config.apply_rope_fusion"),
    switch(
        "--use-fused-rotary-pos-emb",
        "model_config.apply_rope_fusion",
        "Rotary positions by the device's fused operator.",
        aliases=("--apply-rope-fusion",),
    ),
    *ignored(
        "rotary positions leave no others to switch off; without them --position-embedding-type none says it",
        off("--no-position-embedding", "add_position_embedding"),
    ),
    *ignored(
        "together they build the causal mask into the bias, which gives causal attention with ALiBi as it is",
        switch("--square-alibi-mask"),
        switch("--fill-neg-inf"),
    ),
    switch("--use-glm-rope", "model_config.rotary_interleaved", "Rotate neighbouring pairs of half of each head."),
    value("--partial-rotary-factor", float, 0.0, "model_config.rotary_percent"),
    value("--rope-theta", float, None, "model_config.rotary_base"),
    switch("--use-rope-scaling", "model_config.rope_scaling.type", "Stretch long wavelengths as Llama 3.1 does."),
    value(
        "--rope-scaling-type",
        str,
        None,
        "model_config.rope_scaling.type",
        choices=("llama3", "yarn", "longrope", "dynamic", "plm"),
        refuses={"plm": "use llama3, yarn, longrope or dynamic"},
    ),
    value("--rope-type", str, None, "model_config.rope_scaling.type", choices=("rope", "yarn")),
    value("--rope-scaling-factor", float, 8.0, "model_config.rope_scaling.factor"),
    value(
        "--rope-scaling-original-max-position-embeddings",
        int,
        None,
        "model_config.rope_scaling.original_max_position_embeddings",
    ),
    value(
        "--original-max-position-embeddings", whole, None, "model_config.rope_scaling.original_max_position_embeddings"
    ),
    value("--low-freq-factor", float, None, "model_config.rope_scaling.low_freq_factor"),
    value("--high-freq-factor", float, None, "model_config.rope_scaling.high_freq_factor"),
    value("--beta-fast", int, 32, "model_config.rope_scaling.beta_fast"),
    value("--rope-scaling-beta-fast", int, 32, "model_config.rope_scaling.beta_fast"),
    value("--beta-slow", int, 1, "model_config.rope_scaling.beta_slow"),
    value("--rope-scaling-beta-slow", int, 1, "model_config.rope_scaling.beta_slow"),
    value("--rope-scaling-mscale", float, 1.0, "model_config.rope_scaling.mscale"),
    value("--mscale", float, 1.0, "model_config.rope_scaling.mscale"),
    value("--rope-scaling-mscale-all-dim", float, 0.0, "model_config.rope_scaling.mscale_all_dim"),
    value("--mscale-all-dim", float, 0.0, "model_config.rope_scaling.mscale_all_dim"),
    value("--long-factor", numbers, None, "model_config.rope_scaling.long_factor"),
    value("--short-factor", numbers, None, "model_config.rope_scaling.short_factor"),
    value("--long-mscale", float, None, "model_config.rope_scaling.long_mscale"),
    value("--short-mscale", float, None, "model_config.rope_scaling.short_mscale"),
    value(
        "--longrope-freqs-type", str, "mul", "model_config.rope_scaling.longrope_freqs_type", choices=("mul", "outer")
    ),
)
