"""Flags: multi-head latent attention and multi-token prediction."""

from mapping.flags.flag import group, switch, value

FLAGS = group(
    "latent attention and multi-token prediction",
    switch(
        "--multi-latent-attention",
        "model_config.multi_latent_attention.enabled",
        "Attention over low-rank keys and values (DeepSeek-V2, 2024).",
    ),
    switch(
        "--multi-head-latent-attention",
        "model_config.multi_latent_attention.enabled",
        "The older name of --multi-latent-attention.",
    ),
    value("--q-lora-rank", int, None, "model_config.multi_latent_attention.q_lora_rank"),
    value("--kv-lora-rank", int, 32, "model_config.multi_latent_attention.kv_lora_rank"),
    value("--qk-head-dim", int, 128, "model_config.multi_latent_attention.qk_head_dim"),
    value("--qk-nope-head-dim", int, None, "model_config.multi_latent_attention.qk_head_dim"),
    value("--qk-pos-emb-head-dim", int, 64, "model_config.multi_latent_attention.qk_pos_emb_head_dim"),
    value("--qk-rope-head-dim", int, None, "model_config.multi_latent_attention.qk_pos_emb_head_dim"),
    value("--v-head-dim", int, 128, "model_config.multi_latent_attention.v_head_dim"),
    value("--rotary-scaling-factor", float, 1.0, "model_config.multi_latent_attention.rotary_scaling_factor"),
    value("--mtp-num-layers", int, None, "model_config.multi_token_prediction.num_layers"),
    value("--num-nextn-predict-layers", int, 0, "model_config.multi_token_prediction.num_layers"),
    value("--mtp-loss-scaling-factor", float, 0.1, "model_config.multi_token_prediction.loss_scaling_factor"),
    value("--mtp-loss-scale", float, 0.3, "model_config.multi_token_prediction.loss_scaling_factor"),
)
