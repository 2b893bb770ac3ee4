"""Flags: mixed precision."""

from mapping.flags.flag import group, switch, value
from mapping.flags.read import dtype

FLAGS = group(
    "mixed precision",
    switch("--attention-softmax-in-fp32", "model_config.attention_softmax_in_fp32"),
    switch("--fp16-lm-cross-entropy", "model_config.fp16_lm_cross_entropy"),
    switch("--fp32-residual-connection", "model_config.fp32_residual_connection"),
    switch("--bf16", "training_config.bf16"),
    switch("--fp16", "training_config.fp16"),
    value("--loss-scale", float, None, "training_config.loss_scale"),
    value("--initial-loss-scale", float, 4294967296, "training_config.loss_scale_value"),
    value("--loss-scale-window", float, 1000, "training_config.loss_scale_window"),
    value("--hysteresis", int, 2, "training_config.loss_scale_hysteresis"),
    value("--min-loss-scale", float, 1.0, "training_config.min_loss_scale"),
    switch("--accumulate-allreduce-grads-in-fp32", "training_config.accumulate_allreduce_grads_in_fp32"),
    value("--params-dtype", dtype, None, "model_config.params_dtype"),
    value("--compute-dtype", dtype, None, "model_config.compute_dtype"),
    value("--embedding-dtype", dtype, None, "model_config.embedding_init_dtype"),
    value("--loss-scale-factor", float, 2.0, "training_config.loss_scale_factor"),
    switch("--consecutive-hysteresis", "training_config.consecutive_hysteresis"),
    switch("--grad-reduce-in-bf16", "training_config.grad_reduce_in_bf16"),
)
