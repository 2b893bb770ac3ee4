"""Flags of the network, and some of recomputation: the differences of their rows from the options that they fill, and
further flags."""

from typing import Any

from mapping.flags.flag import value
from mapping.flags.notations import (
    HUNYUAN,
    attention_window,
    boolean,
    dtype,
    has_spec,
    layer_frequency,
    numbers,
    whole,
)
from mapping.flags.with_option.build import WITHOUT_MUP, Acting, as_switch, read_by, refusing, same
from parallel_core.system.environment import is_on_cpu


def _stretches_by_rope_type(args: Any) -> bool:
    return (args.multi_latent_attention or args.multi_head_latent_attention) and not args.rope_scaling_type


_LEFT_OPEN = (
    *("hidden-act", "low-freq-factor", "high-freq-factor", "output-multiplier-scale"),
    *("dsa-indexer-n-heads", "dsa-indexer-head-dim", "dsa-indexer-topk"),
    "dsa-indexer-skip-topk-offset",
)
"""Options whose arguments are None if they are not given."""

ACTING = Acting(
    {
        "--num-query-groups": {"default": 1},
        **{f"--{name}": {"default": None} for name in _LEFT_OPEN},
        "--normalization": {"choices": ("LayerNorm", "RMSNorm")},
        **as_switch("--no-post-layer-norm", "Leave the last layer's output as it is, without a final norm."),
        "--position-embedding-type": {
            **refusing("use learned_absolute, rope, alibi or none", "mrope", "relative", also=("yarn", "deepseek4")),
            "idle": (
                lambda args: args.use_rotary_position_embeddings and args.position_embedding_type != "rope",
                "as in Megatron, --use-rotary-position-embeddings goes before it",
            ),
        },
        "--rope-scaling-type": {
            **refusing("use llama3, yarn, longrope or dynamic", also=("plm",)),
            "stands_for": {"plm": "positions are not stretched, as PLM's are not"},
        },
        **{f"--beta-{end}": {"type": whole} for end in ("fast", "slow")},
        **dict.fromkeys(("--long-factor", "--short-factor"), read_by(numbers)),
        "--window-attn-skip-freq": read_by(layer_frequency),
        "--rotary-base": {
            "idle": (lambda args: has_spec(args, HUNYUAN), "Hunyuan's attention has a base of its own, 10000 stretched")
        },
        "--rotary-scaling-factor": {
            "default": 1.0,
            "idle": (
                lambda args: args.rope_scaling_type,
                "beside --rope-scaling-type positions are stretched by --rope-scaling-factor",
            ),
        },
        "--rope-scaling-factor": {
            "idle": (
                _stretches_by_rope_type,
                "latent attention's positions are stretched by --rotary-scaling-factor",
            )
        },
        "--make-vocab-size-divisible-by": {
            "idle": (
                lambda args: args.padded_vocab_size or args.pad_vocab_size_to,
                "the rows of the table are --padded-vocab-size",
            )
        },
        **as_switch(
            "--share-mtp-embedding-and-output-weight",
            "Layers of --num-nextn-predict-layers use the model's embedding and output layer instead of having their "
            "own; those of --mtp-num-layers always do.",
            idle=(
                lambda args: not args.num_nextn_predict_layers,
                "the layers of --mtp-num-layers share them in any case",
            ),
        ),
        "--multi-latent-attention": {"help": "Attention over low-rank keys and values (DeepSeek-V2, 2024)."},
        "--experimental-attention-variant": refusing(
            "this variant is out of scope; use dsa or gated_delta_net, or leave it out for full attention",
            "gdn2",
            also=("gdn",),
        ),
        "--linear-attention-freq": read_by(layer_frequency),
        "--mamba-d-conv": {
            "idle": (
                lambda args: args.experimental_attention_variant and not args.full_attention_interval,
                "gated delta nets have --linear-conv-kernel-dim",
            )
        },
        "--scale-depth": {
            "default": None,
            "help": "What a block adds to the residual is multiplied by this over sqrt(number of layers).",
        },
        "--query-pre-attn-scalar": {
            "type": int,
            "help": "Attention scores are divided by the square root of this instead of that of the head size.",
        },
        "--disable-bias-linear": {"dest": "add_bias_linear"},
        "--params-dtype": read_by(dtype, default=None),
        "--compute-dtype": read_by(dtype),
        "--embedding-dtype": read_by(dtype),
        "--fp8-format": {"dest": "fp8"},
        "--no-fp8-wgrad": {"aliases": ("--disable-fp8-wgrad",)},
        "--transformer-impl": refusing(
            "this implementation is for serving, not for training; use local", "inference_optimized"
        ),
        "--no-rope-fusion": {
            "dest": "apply_rope_fusion",
            "idle": (
                lambda args: args.use_fused_rotary_pos_emb,
                "--use-fused-rotary-pos-emb counts, as in MindSpeed",
            ),
        },
    },
    (
        value("--swiglu", "hidden_act", "Gate the feed-forward block with silu."),
        value(
            "--fc-type=str{gate_up,up_down}:gate_up",
            "hidden_act",
            "gate_up: feed-forward blocks have the gate of --swiglu; up_down: they have none.",
            idle=(lambda args: not args.swiglu, "only --swiglu has a gate to leave out"),
            completes=("--swiglu",),
            refines=True,
        ),
        value("--squared-relu", "hidden_act", "Make relu, squared, the activation of the feed-forward block."),
        value(
            "--use-fused-rmsnorm",
            "normalization",
            "Compute the RMSNorm of --normalization RMSNorm, which it needs, by the device's fused operator.",
            idle=(lambda args: is_on_cpu(args.device_target), "a CPU has one form of RMSNorm"),
            completes=("--normalization",),
            refines=True,
        ),
        value("--geglu", "hidden_act", "Gate the feed-forward block with gelu."),
        value("--quick-geglu", "hidden_act", "Gate the feed-forward block with x sigmoid(1.702 x)."),
        same("--swiglu-limit", "activation_func_clamp_value", default=0.0),
        value("--gelu-tanh", "hidden_act", "Gate the feed-forward block with the tanh form of gelu."),
        same("--add-bias-linear", "add_bias_linear", stores=True),
        same("--post-norm", "use_sandwich_norm"),
        same("--add-rmsnorm-offset", "apply_layernorm_1p"),
        same(
            "--interleave-sliding-window",
            "sliding_window.size",
            "A sliding window of so many tokens, a query's own included, in every other layer, the first among them.",
        ),
        value("--window-size=str", "sliding_window.size", type=attention_window),
        value("--input-embeds-norm", "scales.embedding", "Multiply embeddings by sqrt(hidden size)."),
        same("--scale-emb", "scales.embedding", default=None),
        value(
            "--mup-embedding-mult=float:1.0",
            "scales.embedding",
            "With --use-mup embeddings are multiplied by this.",
            idle=WITHOUT_MUP,
        ),
        value(
            "--mup-output-mult=float:1.0",
            "scales.logits",
            "With --use-mup logits are multiplied by this; if it is 1, by --mup-base-hidden-size / --hidden-size.",
            idle=WITHOUT_MUP,
        ),
        value(
            "--mup-base-head-dim=float",
            "scales.attention",
            "With --use-mup attention scores are multiplied by sqrt(this) / (head size ^ --mup-attn-scale-power); if "
            "not given, this is 1.",
            idle=WITHOUT_MUP,
            refines=True,
        ),
        value(
            "--mup-attn-scale-power=float:1.0",
            "scales.attention",
            "With --use-mup attention scores are divided by the head size to this power (see --mup-base-head-dim).",
            idle=WITHOUT_MUP,
            refines=True,
        ),
        same(
            "--dim-model-base",
            "scales.logits",
            "Logits are multiplied by this divided by the hidden size.",
            default=None,
        ),
        same("--encoder-num-layers", "model_config.num_layers"),
        same("--encoder-seq-length", "seq_length"),
        same("--pad-vocab-size-to", "model_config.vocab_size"),
        same(
            "--extra-vocab-size",
            "model_config.vocab_size",
            "Rows added to the tokenizer's vocabulary.",
            default=0,
            completes=("--padded-vocab-size", "--pad-vocab-size-to"),
            refines=True,
        ),
        value("--recompute-activations", "recompute_granularity", "Short for --recompute-granularity selective."),
        value(
            "--gradient_checkpointing=str:False",
            "recompute_granularity",
            "Compute each layer again in the backward: short for --recompute-granularity full --recompute-method "
            "uniform --recompute-num-layers 1.",
            type=boolean,
        ),
        value(
            "--use-fused-rotary-pos-emb|--apply-rope-fusion",
            "apply_rope_fusion",
            "Compute rotary positions by the device's fused operator.",
        ),
        same(
            "--use-glm-rope",
            "rotary_interleaved",
            "Rotate neighbouring pairs of channels, as GLM's models do (which have --rotary-percent 0.5, too).",
        ),
        same("--partial-rotary-factor", "rotary_percent", default=0.0),
        same("--rope-theta", "rotary_base", default=None),
        value(
            "--use-rope-scaling",
            "rope_scaling.type",
            "Stretch long wavelengths as Llama 3.1 does.",
            idle=(_stretches_by_rope_type, "latent attention's positions are stretched as --rope-type says"),
        ),
        same("--rope-type", "rope_scaling.type", choices=("rope", "yarn")),
        value("--original-max-position-embeddings=str", "original_max_position_embeddings", type=whole),
        same("--yarn-original-max-position-embeddings", "original_max_position_embeddings"),
        same("--yarn-beta-fast", "beta_fast", default=None),
        same("--yarn-beta-slow", "beta_slow", default=None),
        same("--yarn-correction-range-round-to-int", "yarn_correction_range_round_to_int", stores=True),
        same("--rope-scaling-beta-fast", "beta_fast", type=int),
        same("--rope-scaling-beta-slow", "beta_slow", type=int),
        same("--mscale", "rope_scaling.mscale"),
        same("--mscale-all-dim", "mscale_all_dim"),
        same(
            "--multi-head-latent-attention",
            "multi_latent_attention.enabled",
            "The older name of --multi-latent-attention.",
        ),
        same("--qk-nope-head-dim", "qk_head_dim", default=None),
        same("--qk-rope-head-dim", "qk_pos_emb_head_dim", default=None),
        same("--hybrid-layer-pattern", "hybrid.layer_pattern"),
        value(
            "--is-hybrid-model",
            "hybrid.layer_pattern",
            "Layers of one part each, in the shares that --hybrid-attention-ratio and --hybrid-mlp-ratio say.",
            completes=("--hybrid-override-pattern", "--hybrid-layer-pattern"),
            refines=True,
        ),
        value(
            "--hybrid-attention-ratio=float:0.0",
            "hybrid.layer_pattern",
            "Share of layers that are attention.",
            completes=("--hybrid-override-pattern", "--hybrid-layer-pattern", "--is-hybrid-model"),
            refines=True,
        ),
        value(
            "--hybrid-mlp-ratio=float:0.0",
            "hybrid.layer_pattern",
            "Share of layers that are feed-forward blocks.",
            completes=("--hybrid-override-pattern", "--hybrid-layer-pattern", "--is-hybrid-model"),
            refines=True,
        ),
        value(
            "--mamba-expand=int:1",
            "hybrid.mamba_num_heads",
            "Number of features of a state space, as a multiple of the hidden size.",
        ),
        same("--enable-mhc-connections", "hyper_connections.enabled"),
        same("--mhc-num-residual-streams", "hyper_connections.streams"),
        same("--mhc-sinkhorn-iterations", "hyper_connections.iterations"),
        value(
            "--full-attention-interval=int:0",
            "linear_attention.linear_attention_freq",
            "Every so many-th layer has attention with gates of its output, all other layers a gated delta net "
            "(Qwen3-Next).",
        ),
        value(
            "--enable-dsa-indexer",
            "sparse_attention.variant",
            "Sparse attention whose indexer is trained by a loss over the chosen keys alone.",
        ),
        same("--index-n-heads", "dsa_indexer_n_heads"),
        same("--index-head-dim", "dsa_indexer_head_dim"),
        same("--index-topk", "dsa_indexer_topk"),
        same("--index-topk-freq", "dsa_indexer_topk_freq"),
        same(
            "--index-skip-topk-offset",
            "dsa_indexer_skip_topk_offset",
            "Number of first layers that have an indexer in any case; default: 2 with --enable-dsa-indexer, else 0.",
            default=None,
        ),
        same("--indexer-loss-coeff", "dsa_indexer_loss_coeff", default=1.0),
        same("--num-nextn-predict-layers", "multi_token_prediction.num_layers", default=0),
        same("--mtp-loss-scale", "multi_token_prediction.loss_scaling_factor", default=0.3),
        value("--use-llama2-rotary-position-embeddings", "position_embedding_type", "Take rotary positions."),
    ),
)
