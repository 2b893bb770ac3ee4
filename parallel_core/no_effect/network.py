"""Conditions under which options of the model have no effect, and the reasons."""

from parallel_core.config.all import AllConfig
from parallel_core.config.compressed_attention import CompressedAttentionConfig
from parallel_core.config.families import RopeScalingConfig, SparseAttentionConfig
from parallel_core.config.float8 import Float8Config
from parallel_core.config.hybrid import ATTENTION, MAMBA, SIDE_BY_SIDE, HybridConfig
from parallel_core.config.hyper_connections import HyperConnectionsConfig
from parallel_core.config.linear_attention import LinearAttentionConfig
from parallel_core.no_effect.row import Idle, all_of, below, needs, unless, where


def _has_experts_alone(config: AllConfig) -> bool:
    """Whether --ffn-hidden-size does nothing: every layer has experts, whose width is another option's."""
    moe, model = config.moe_config, config.model_config
    every = all(moe.has_experts(layer) for layer in range(model.num_layers))
    return every and moe.moe_ffn_hidden_size != model.ffn_hidden_size


_READ_BY = {
    "llama3": "low_freq_factor high_freq_factor",
    "yarn": "beta_fast beta_slow yarn_correction_range_round_to_int rope_scaling.mscale",
    "longrope": "long_factor short_factor long_mscale short_mscale",
}
"""Kind of rotary scaling -> the options that it alone reads."""


def _is_long(config: AllConfig) -> bool:
    """Whether --seq-length is above the length that the model was first trained on."""
    model = config.model_config
    return model.seq_length > (model.rope_scaling.original_max_position_embeddings or model.max_position_embeddings)


def _stretches_nothing(config: AllConfig) -> bool:
    model, scaling = config.model_config, config.model_config.rope_scaling
    plain = model.multi_latent_attention.enabled and model.rotary_factor
    return {"llama3": scaling.factor, "yarn": model.rotary_factor, "None": plain}.get(str(scaling.type)) == 1


def _sharpens_nothing(config: AllConfig) -> bool:
    """Whether mscale_all_dim changes nothing: the rotary factor is 1, or it is not read, which only YaRN and latent
    attention (with any rotary scaling) do."""
    model = config.model_config
    is_read = model.rope_scaling.type == "yarn" or model.multi_latent_attention.enabled
    return not is_read or model.rotary_factor == 1


def _has_no_state_space(config: AllConfig) -> bool:
    return not config.model_config.hybrid.enabled or not config.model_config.hybrid.has(MAMBA)


_ROTARY = (
    "rotary_base rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor apply_rope_fusion",
    *(f"rope_scaling.{name}" for name in below(RopeScalingConfig, "longrope_freqs_type").split()),
)
_NO_TANH = "needs --hidden-act gelu and linears with biases"
_NO_LONGER = "sequences are no longer than --original-max-position-embeddings"
_LONGER = "sequences are longer than --original-max-position-embeddings"
_TURNS_A_PART = all_of(where("multi_latent_attention.enabled", True), where("position_embedding_type", "none"))
_OWN_SIZES = "latent attention's heads have sizes of their own, and its projections no bias of this name"
_NOT_ROTATING = "there are no rotary positions without --position-embedding-type rope"
_TURNED = "where latent attention's positions are stretched all of its rotary part rotates"
_BY_FACTORS = "--rope-scaling-type longrope stretches by --long-factor and --short-factor"
_NOT_TURNED = "queries and keys of heads are not turned as a whole without --position-embedding-type rope"
_NO_INDEXER = "there is no indexer without --experimental-attention-variant dsa or --enable-dsa-indexer"
_NO_ENTRIES = "there are no compressed entries without --compress-ratios"
_OWN_FORM = "--compress-ratios has one key of --qk-head-dim, positions of its own, and neither dropout nor other sinks"
_OF_LATENTS = (
    "kv_lora_rank v_head_dim scale_q_lora scale_kv_lora rotary_scaling_factor rope_scaling.type rope_scaling.factor "
    "original_max_position_embeddings rope_scaling.mscale mscale_all_dim attention_dropout_rate softmax_type "
    "rotary_percent position_embedding_type dsa_indexer_use_sparse_loss"
)
_NO_STATE_SPACE = "no layer is a state space without --hybrid-layer-pattern, --is-hybrid-model or a spec of Mamba's"
_IN_16_BITS = (
    "products are computed in the type of --bf16 or --fp16, else in float32, which round finer than 8 bits; "
    "--fp8-simulate rounds as 8 bits do"
)
_NO_DROPOUT = "sparse attention has no dropout on its probabilities, as in Megatron"

ROWS = (
    needs("group_query_attention", "num_query_groups"),
    needs("use_sandwich_norm", "attn_post_norm_scale ffn_post_norm_scale"),
    needs("sliding_window.size", "skip_freq sliding_window.local_rotary_base"),
    needs(
        "multi_latent_attention.enabled",
        "q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim latent_norm_epsilon rotary_scaling_factor "
        "scale_q_lora scale_kv_lora",
    ),
    needs("q_lora_rank", "scale_q_lora"),
    needs("qk_layernorm", "apply_wd_to_qk_layernorm latent_norm_epsilon qk_norm_type qk_norm_after_rotary"),
    Idle("qk_norm_after_rotary", lambda config: not config.model_config.use_rotary_embedding, _NOT_TURNED),
    Idle("kv_channels qkv_has_bias", where("multi_latent_attention.enabled", True), _OWN_SIZES),
    Idle("position_embedding_type", _TURNS_A_PART, "latent attention turns a part of each head in any case"),
    Idle("ffn_hidden_size", _has_experts_alone, "every layer has experts, whose width is --moe-ffn-hidden-size"),
    *(Idle("bias_gelu_fusion", holds, _NO_TANH) for holds in (unless("hidden_act", "gelu"), unless("mlp_has_bias"))),
    Idle(" ".join(_ROTARY), lambda config: not config.model_config.rotates, _NOT_ROTATING),
    Idle(
        "rotary_percent",
        lambda config: config.model_config.rotating_share != config.model_config.rotary_percent,
        _TURNED,
    ),
    Idle(
        "rope_scaling.factor original_max_position_embeddings",
        where("rope_scaling.type", None),
        "needs --rope-scaling-type or --use-rope-scaling",
    ),
    *(needs("rope_scaling.type", names, kind) for kind, names in _READ_BY.items()),
    Idle("rope_scaling.factor", where("rope_scaling.type", "longrope"), _BY_FACTORS),
    Idle("long_factor long_mscale", lambda config: not _is_long(config), _NO_LONGER, of_lengths=True),
    Idle("short_factor short_mscale", _is_long, _LONGER, of_lengths=True),
    Idle(
        "rope_scaling.type rope_scaling.factor",
        lambda config: config.model_config.rope_scaling.type == "dynamic" and not _is_long(config),
        _NO_LONGER,
        of_lengths=True,
    ),
    Idle(
        "rope_scaling.type rope_scaling.factor original_max_position_embeddings low_freq_factor high_freq_factor "
        "beta_fast beta_slow yarn_correction_range_round_to_int rope_scaling.mscale",
        _stretches_nothing,
        "a factor of 1 stretches nothing",
    ),
    Idle("mscale_all_dim", _sharpens_nothing, "needs --rope-scaling-type yarn and a factor above 1"),
    Idle(below(SparseAttentionConfig, "variant"), unless("sparse_attention.variant", "dsa"), _NO_INDEXER),
    Idle(
        "index_share_for_mtp_iteration",
        lambda config: config.model_config.multi_token_prediction.depths < 2,
        "multi-token prediction has a single layer, or none",
    ),
    Idle(
        "dsa_indexer_topk_freq dsa_indexer_skip_topk_offset",
        unless("sparse_attention.index_topk_pattern", None),
        "--index-topk-pattern says which layers have an indexer",
    ),
    Idle(
        below(HybridConfig, "layer_pattern", "mamba_d_conv", "side_by_side_weights"),
        _has_no_state_space,
        _NO_STATE_SPACE,
    ),
    Idle(
        "side_by_side_weights",
        lambda config: SIDE_BY_SIDE not in (config.model_config.hybrid.layer_pattern or ""),
        f"--hybrid-layer-pattern has no {SIDE_BY_SIDE}",
    ),
    Idle(
        "mamba_d_conv",
        lambda config: _has_no_state_space(config) and not config.model_config.has_delta_nets,
        _NO_STATE_SPACE,
    ),
    Idle(
        "num_attention_heads group_query_attention num_query_groups kv_channels attention_dropout_rate scales.key",
        lambda config: not config.model_config.hybrid.has(ATTENTION),
        "no layer has attention",
    ),
    needs("sparse_attention.variant", below(LinearAttentionConfig, "linear_attention_freq"), "gated_delta_net"),
    needs("sparse_attention.variant", "linear_attention_freq", "gated_delta_net", "lightning_attention"),
    needs("sparse_attention.variant", "linear_attention_residual", "lightning_attention"),
    Idle(below(CompressedAttentionConfig, "ratios"), unless("compressed_attention.ratios"), _NO_ENTRIES),
    Idle(_OF_LATENTS, unless("compressed_attention.ratios", None), _OWN_FORM),
    needs("qk_clip.enabled", "qk_clip.alpha qk_clip.threshold"),
    Idle("qk_clip.log_largest", where("qk_clip.enabled", True), "--qk-clip logs the largest scores in any case"),
    Idle(below(Float8Config, "fp8_simulate"), unless("fp8_simulate"), _IN_16_BITS),
    needs("fp8_recipe", "fp8_margin fp8_amax_history_len fp8_amax_compute_algo", "delayed"),
    needs("first_last_layers_bf16", "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16"),
    needs("hyper_connections.enabled", below(HyperConnectionsConfig, "enabled")),
    Idle("attention_dropout_rate", where("sparse_attention.variant", "dsa"), _NO_DROPOUT),
    Idle(
        "loss_scaling_factor share_embedding_and_output_weight",
        unless("multi_token_prediction.num_layers"),
        "no further token is predicted without --mtp-num-layers or --num-nextn-predict-layers",
    ),
    Idle("pre_tokens", unless("sparse_mode", 0, 4), "this --sparse-mode is causal over the whole sequence"),
    Idle(
        "pre_tokens sparse_mode",
        lambda config: config.model_config.fa_config.pre_tokens >= config.model_config.seq_length,
        "--pre-tockens leaves out no token of a sequence",
        of_lengths=True,
    ),
)
