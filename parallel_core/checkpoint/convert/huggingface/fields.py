"""Rows of settings in config.json: those that several families share, and the tables of whole families, such as
LLAMA."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, windows
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rope import ROPE


def negated(value: Any) -> bool:
    """The opposite of a truth value, for keys that say the contrary of our option."""
    return not value


def tied(default: bool) -> Field:
    """The row for whether embedding and output layer are one parameter (`tie_word_embeddings`). default: the answer
    where the key is missing or null."""
    path = "model_config.untie_embeddings_and_output_weights"
    return Field(path, "tie_word_embeddings", default, negated, negated)


def _heads(config: Mapping[str, Any]) -> Settings:
    heads, groups = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    found = {
        "model_config.num_attention_heads": heads,
        "model_config.kv_channels": config.get("head_dim") or config["hidden_size"] // heads,
        "model_config.group_query_attention": groups != heads,
    }
    return found if groups == heads else {**found, "model_config.num_query_groups": groups}


def _heads_out(ours: Settings) -> Mapping[str, Any]:
    return {
        "num_attention_heads": ours["model_config.num_attention_heads"],
        "num_key_value_heads": ours["model_config.num_query_groups"],
        "head_dim": ours["model_config.kv_channels"],
    }


def _all_biases(config: Mapping[str, Any]) -> Settings:
    return {"model_config.add_bias_linear": bool(config.get("attention_bias") and config.get("mlp_bias"))}


def _attention_bias(config: Mapping[str, Any]) -> Settings:
    has = bool(config.get("attention_bias"))
    return {"model_config.qkv_has_bias": has, "model_config.out_proj_has_bias": has}


def _attention_bias_out(ours: Settings) -> Mapping[str, Any]:
    qkv, out = ours["model_config.qkv_has_bias"], ours["model_config.out_proj_has_bias"]
    if qkv != out:
        raise ValueError("only one of linear_qkv and linear_proj has a bias: no key of config.json says that")
    return {"attention_bias": qkv}


COMMON: tuple[AnyField, ...] = (
    Field("model_config.unpadded_vocab_size", "vocab_size"),
    Field("model_config.init_method_std", "initializer_range", 0.02),
)
SIZES: tuple[AnyField, ...] = (
    *COMMON,
    Field("model_config.num_layers", "num_hidden_layers"),
    Field("model_config.hidden_size", "hidden_size"),
    Field("model_config.ffn_hidden_size", "intermediate_size"),
    Field("model_config.max_position_embeddings", "max_position_embeddings"),
    Field("model_config.norm_epsilon", "rms_norm_eps"),
    Field("model_config.attention_dropout_rate", "attention_dropout", 0.0),
    always("model_config.hidden_dropout_rate", 0.0),
)
SILU = Must("hidden_act", ("silu", "swish"))
ANY_STEP = Must("time_step_limit", ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}], None))
"""The row that accepts only state spaces whose time steps are not limited."""
BASE: tuple[AnyField, ...] = (*SIZES, tied(False), SILU, ROPE)
HEADS = Group(("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"), _heads, _heads_out)
ATTENTION_BIAS = Group(("attention_bias",), _attention_bias, _attention_bias_out)
BIASES: tuple[AnyField, ...] = (
    ATTENTION_BIAS,
    Field("model_config.mlp_has_bias", "mlp_bias", False),
    Group(("attention_bias", "mlp_bias"), _all_biases, lambda _: {}),
)


def _hidden_dropout(config: Mapping[str, Any]) -> Settings:
    return {"model_config.hidden_dropout_rate": config.get("resid_pdrop", 0.1)}


def _hidden_dropout_out(ours: Settings) -> Mapping[str, Any]:
    """`resid_pdrop` and `embd_pdrop` of GPT-2, both our one dropout rate of hidden states."""
    return dict.fromkeys(("resid_pdrop", "embd_pdrop"), ours["model_config.hidden_dropout_rate"])


GPT2: tuple[AnyField, ...] = (
    *COMMON,
    Field("model_config.num_layers", "n_layer"),
    Field("model_config.hidden_size", "n_embd"),
    Field("model_config.num_attention_heads", "n_head"),
    Field("model_config.max_position_embeddings", "n_positions"),
    Field("model_config.ffn_hidden_size", "n_inner", None),
    Field("model_config.norm_epsilon", "layer_norm_epsilon", 1e-5),
    tied(True),
    Field(
        "model_config.bias_gelu_fusion",
        "activation_function",
        "gelu_new",
        {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu_fast": True, "gelu": False}.__getitem__,
        {True: "gelu_new", False: "gelu"}.__getitem__,
    ),
    Field("model_config.attention_dropout_rate", "attn_pdrop", 0.1),
    Group(("resid_pdrop",), _hidden_dropout, _hidden_dropout_out),
    Must("scale_attn_weights", (True, None)),
    Must("scale_attn_by_inverse_layer_idx", (False, None)),
    Must("add_cross_attention", (False, None)),
)
LLAMA = (*BASE, HEADS, *BIASES)
MISTRAL = (*BASE, HEADS, windows.everywhere(default=4096))
QWEN2 = (*BASE, HEADS, windows.by_switch(windows.from_a_layer_on), Must("use_mrope", (False, None)))
QWEN3 = (*QWEN2, ATTENTION_BIAS)
MIXTRAL = (*BASE, HEADS, windows.everywhere(), *experts.MIXTRAL)
QWEN2_MOE = (
    *BASE,
    HEADS,
    windows.by_switch(windows.every_other_before_a_layer),
    *experts.QWEN,
    Field("moe_config.moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    Field("model_config.qkv_has_bias", "qkv_bias", True),
)
QWEN3_MOE = (*BASE, HEADS, windows.by_switch(), *experts.QWEN, ATTENTION_BIAS)


def _latent_heads(config: Mapping[str, Any]) -> Settings:
    return {"model_config.num_attention_heads": config["num_attention_heads"]}


def _latent_heads_out(ours: Settings) -> Mapping[str, Any]:
    """`num_attention_heads` and `num_key_value_heads`, both the number of latent attention's heads: transformers'
    default for the second is another one."""
    heads = ours["model_config.num_attention_heads"]
    return {"num_attention_heads": heads, "num_key_value_heads": heads}


def _latent_norms(config: Mapping[str, Any]) -> Settings:
    """The setting for the epsilon of latents' norms, which is 1e-6 in transformers whatever `rms_norm_eps` is."""
    path, same = "model_config.multi_latent_attention.latent_norm_epsilon", config.get("rms_norm_eps") == 1e-6
    return {} if same else {path: 1e-6}


LATENT_HEADS: tuple[AnyField, ...] = (
    Group(("num_attention_heads",), _latent_heads, _latent_heads_out),
    Group(("rms_norm_eps",), _latent_norms, lambda _: {}),
    Field("model_config.multi_latent_attention.q_lora_rank", "q_lora_rank", None),
    Field("model_config.multi_latent_attention.kv_lora_rank", "kv_lora_rank"),
    Field("model_config.multi_latent_attention.qk_head_dim", "qk_nope_head_dim"),
    Field("model_config.multi_latent_attention.qk_pos_emb_head_dim", "qk_rope_head_dim"),
    Field("model_config.multi_latent_attention.v_head_dim", "v_head_dim"),
    Must("attention_bias", (False, None)),
)
DEEPSEEK: tuple[AnyField, ...] = (*BASE, *LATENT_HEADS)
DEEPSEEK_V3 = (*DEEPSEEK, *experts.DEEPSEEK_V3, Must("rope_interleave", (True, None)))
INDEXER: tuple[AnyField, ...] = (
    Field("model_config.sparse_attention.dsa_indexer_n_heads", "index_n_heads"),
    Field("model_config.sparse_attention.dsa_indexer_head_dim", "index_head_dim"),
    Field("model_config.sparse_attention.dsa_indexer_topk", "index_topk"),
    always("model_config.sparse_attention.dsa_indexer_loss_coeff", 0.0),
)
"""Rows of sparse attention's indexer. The weight of its loss is in no key of config.json."""
DEEPSEEK_V32 = (*DEEPSEEK, *experts.DEEPSEEK_V3, *INDEXER)
DEEPSEEK_V2 = (*DEEPSEEK, *experts.DEEPSEEK_V2, Must("mlp_bias", (False, None)))
