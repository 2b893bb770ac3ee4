"""Keys of config.json that no setting of ours is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface.kinds import keys_of
from parallel_core.checkpoint.convert.huggingface.tables import Family

_READ = {"model_type", "quantization_config"}
"""Which family it is, and how its weights are stored."""

_REASONS: dict[str, tuple[str, ...]] = {
    "files and tools": (
        "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "torchscript",
        "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "unsloth_version",
        "unsloth_fixed", "tie_encoder_decoder", "use_bfloat16", "tf_legacy_loss", "pruned_heads", "ep_size",
    ),
    "the tokenizer, which --tokenizer-type and its files say": (
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "tokenizer_class",
        "prefix",
    ),
    "generation": (
        "use_cache", "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
        "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
        "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
        "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
        "suppress_tokens", "begin_suppress_tokens", "output_scores", "return_dict_in_generate", "task_specific_params",
    ),
    "other tasks, and what else a forward returns": (
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "num_labels", "id2label", "label2id", "problem_type", "finetuning_task", "classifier_dropout", "is_decoder",
        "is_encoder_decoder", "cross_attention_hidden_size", "output_attentions", "output_hidden_states",
        "output_router_logits", "return_dict", "chunk_size_feed_forward",
    ),
    "training, which flags say (--moe-aux-loss-coeff, --moe-input-jitter-eps, --hidden-dropout)": (
        "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "embd_pdrop",
        "gradient_checkpointing",
    ),
    "nothing that another key, or a tensor's shape, does not say": (
        "pretraining_tp", "reorder_and_upcast_attn", "n_ctx", "max_sequence_length", "num_nextn_predict_layers",
        "head_dim", "qk_head_dim", "num_key_value_heads",
    ),
}  # fmt: skip
"""Of what a key says something -> keys. Those that a family maps are not left out of its models."""

_REASON_OF = {key: reason for reason, keys in _REASONS.items() for key in keys}
UNKNOWN = "something that is not known here, and that transformers' class of today does not read either"


def left_out(config: Mapping[str, Any], family: Family) -> dict[str, list[str]]:
    """Of what the keys that are left out say something -> the keys."""
    found: dict[str, list[str]] = {}
    mapped = _READ.union(*map(keys_of, family.fields))
    for key in config:
        if key not in mapped:
            found.setdefault(_REASON_OF.get(key, UNKNOWN), []).append(key)
    return found
