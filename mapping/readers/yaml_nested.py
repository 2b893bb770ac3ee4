"""The nested schema of `examples/gpt/pretrain_gpt_38BV3.yaml`: key -> config fields, as data.

Fields are named by the ends of their paths.
"""

from collections.abc import Collection, Mapping
from typing import Any

from mapping.given import Given
from mapping.readers import types
from mapping.readers.earlier_keys import EARLIER
from mapping.readers.meaning import Entries, Meaning, Values, equals, to, unknown, unless
from mapping.readers.yaml_sections import meant
from mapping.readers.yaml_sections import read as read_sections
from parallel_core.config.serialise import leaves
from parallel_core.config.tree import OPTIONS
from parallel_core.findings import Finding


def norm_type(value: Any, entries: Entries) -> Values:
    """The meaning of the kind of norm: RMSNorm is the fused one if the list of fused operators names rmsnorm."""
    fused = entries.get(f"{_PRECISION}.fused_operators")
    is_fused = "rmsnorm" in (_names(fused) or ())
    return {"normalization": "FusedRMSNorm" if is_fused and value == "RMSNorm" else value}


def query_groups(value: Any, entries: Entries) -> Values:
    """The meaning of the number of key/value groups; --group-query-attention follows, unless `attention_type` gives
    it."""
    is_said = entries.get(f"{_BLOCKS}.attention.attention_type")
    return {"num_query_groups": value} | ({} if is_said else {"group_query_attention": True})


def _names(value: Any) -> set[str] | None:
    """The operators' names in a list, or in a text with commas between, without gradient_accumulation; None: it is
    neither."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return None
    return {name.strip() for name in listed} - {"", "gradient_accumulation"}


OPERATORS = {
    "flash_attention": "use_flash_attention",
    "rope": "apply_rope_fusion",
    "swiglu": "apply_swiglu_fusion",
    "masked_softmax": "masked_softmax_fusion",
}
"""Name in the lists of fused and unfused operators -> the option; rmsnorm and gradient_accumulation are treated
apart."""


def operators(fused: bool) -> Meaning:
    """The meaning of a list of operators' names, or of a text with commas between them: they are fused, or with False
    are not; rmsnorm counts only if fused, gradient_accumulation never. It raises ValueError for unknown names, and for
    what is neither."""

    def read(value: Any, entries: Entries) -> Values:
        names = _names(value)
        if names is None:
            raise ValueError("must be names of operators, in a list or with commas between")
        values: Values = {OPERATORS[name]: fused for name in names & OPERATORS.keys()}
        if "rmsnorm" in names and fused:
            values["normalization"] = "FusedRMSNorm"
        strange = names - OPERATORS.keys() - {"rmsnorm"}
        if strange:
            known = ", ".join((*OPERATORS, "rmsnorm", "gradient_accumulation"))
            raise ValueError(f"knows {known}, not {', '.join(sorted(strange))}")
        return values

    return read


_PIPELINE = "accelerate_config.parallelization.pipeline"
_PRECISION = "accelerate_config.precision"
_BLOCKS = "model_config.llm.blocks"
KEYS: dict[str, Meaning] = {
    "accelerate_config.parallelization.tensor_parallel": to("tensor_model_parallel_size"),
    "accelerate_config.parallelization.context_parallel": to("context_parallel_size"),
    "accelerate_config.parallelization.expert_parallel": to("expert_model_parallel_size"),
    "accelerate_config.parallelization.use_sequence_parallel": to("sequence_parallel"),
    "accelerate_config.parallelization.use_distributed_optimizer": to("use_distributed_optimizer"),
    f"{_PIPELINE}.num_stages": to("pipeline_model_parallel_size"),
    f"{_PIPELINE}.layer_list": to("num_layer_list"),
    f"{_PIPELINE}.micro_batch_size": to("batch_size"),
    f"{_PIPELINE}.micro_batch_num": to("micro_batch_num"),
    f"{_PIPELINE}.noop_layers": to("noop_layers"),
    f"{_PIPELINE}.num_layers_per_vpp": to("num_layers_per_virtual_pipeline_stage"),
    f"{_PIPELINE}.virtual_pipeline_model_parallel_size": to("virtual_pipeline_model_parallel_size"),
    f"{_PRECISION}.param_init_dtype": to("params_dtype"),
    f"{_PRECISION}.compute_dtype": types.compute_dtype,
    f"{_PRECISION}.softmax_compute_dtype": types.softmax,
    f"{_PRECISION}.logits_compute_dtype": types.logits,
    f"{_PRECISION}.grad_accumulation_dtype": types.gradients,
    f"{_PRECISION}.residual-connection": types.residual,
    f"{_PRECISION}.fused_operators": operators(True),
    f"{_PRECISION}.nofused_operators": operators(False),
    "model_config.llm.tokenizer.padded_size": to("model_config.vocab_size"),
    "model_config.llm.tokenizer.divided_by": to("make_vocab_size_divisible_by"),
    "model_config.llm.embedding.hidden_size": to("hidden_size"),
    "model_config.llm.embedding.init_std": to("embedding_init_method_std"),
    "model_config.llm.position.type": lambda value, entries: {
        "position_embedding_type": value,
        "use_rotary_embedding": value == "rope",
    },
    "model_config.llm.position.max_size": to("seq_length", "max_position_embeddings"),
    "model_config.llm.position.rope_base": to("rotary_base"),
    f"{_BLOCKS}.num_layers": to("model_config.num_layers"),
    f"{_BLOCKS}.init_std": to("init_method_std"),
    f"{_BLOCKS}.sandwich_norm": to("use_sandwich_norm"),
    f"{_BLOCKS}.layernorm.norm_type": norm_type,
    f"{_BLOCKS}.layernorm.epsilon": to("norm_epsilon"),
    f"{_BLOCKS}.attention.head_num": to("num_attention_heads"),
    f"{_BLOCKS}.attention.kv_group_size": query_groups,
    f"{_BLOCKS}.attention.attention_type": equals("group_query_attention", "GQA", ("GQA", "MHA")),
    f"{_BLOCKS}.attention.qkv_bias": to("qkv_has_bias"),
    f"{_BLOCKS}.attention.projection_bias": to("out_proj_has_bias"),
    f"{_BLOCKS}.attention.dropout_rate": to("attention_dropout_rate"),
    f"{_BLOCKS}.attention.post_norm_scale": to("attn_post_norm_scale"),
    f"{_BLOCKS}.ffn.hidden_size": to("ffn_hidden_size"),
    f"{_BLOCKS}.ffn.activation": to("hidden_act"),
    f"{_BLOCKS}.ffn.dropout_rate": to("hidden_dropout_rate"),
    f"{_BLOCKS}.ffn.mlp_bias": to("mlp_has_bias", "add_bias_linear"),
    f"{_BLOCKS}.ffn.post_norm_scale": to("ffn_post_norm_scale"),
    "model_config.llm.head.shared_embedding": unless("untie_embeddings_and_output_weights"),
    **{
        f"train_config.ms_training_config.{path.rpartition('.')[2]}": to(path)
        for path in OPTIONS
        if path.startswith("training_config.")
    },
    **{
        f"train_config.ms_{key}": meaning
        for key, meaning in EARLIER.items()
        if key.startswith("training_config.") and key.count(".") == 1
    },
    **{
        f"train_config.{path.rpartition('.')[2]}": to(path)
        for path in OPTIONS
        if path.startswith(("training_config.", "optimizer_config.", "dataset_config."))
    },
}
"""Key of the schema -> its meaning."""

IGNORED = {"model_config.llm.tokenizer.use_fast": "a slow tokenizer gives the same ids"}
"""Key that does nothing -> the reason."""


_TREES = ("accelerate_config.", "train_config.", "model_config.llm.")


def is_layout_of(content: Mapping[str, Any]) -> bool:
    """Whether a file has accelerate_config, train_config or model_config.llm, each of which is of this schema alone."""
    model = content.get("model_config")
    in_model = isinstance(model, Mapping) and "llm" in model
    return "accelerate_config" in content or "train_config" in content or in_model


def read(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary in this schema, and findings about it; a key without a value is left out. source: the
    name of the dictionary, or of its file, in messages.

    An unknown key below one of this schema's own top keys is a finding; all other keys are read as those of sections,
    which may stand beside it.
    """
    entries = dict(leaves(content))
    own = {key for key in entries if key in KEYS or key in IGNORED}
    strange = [key for key in entries if key not in own and key.startswith(_TREES)]
    findings = [unknown(key, [*KEYS, *IGNORED], source) for key in strange]
    given = [Given(key, entries[key], source=source, reason=IGNORED[key]) for key in entries if key in IGNORED]
    for key in (key for key in KEYS if key in entries):
        found, wrong = meant(key, KEYS[key], entries[key], entries, source)
        given += found
        findings += wrong
    found, wrong = read_sections(_without(content, own, strange), source)
    return [*given, *found], [*findings, *wrong]


def _without(content: Mapping[str, Any], *taken: Collection[str], prefix: str = "") -> dict[str, Any]:
    """The dictionary without the leaves at the paths `taken`, and without dictionaries that are then empty."""
    left: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner = _without(value, *taken, prefix=f"{path}.")
            left |= {key: inner} if inner else {}
        elif not any(path in paths for paths in taken):
            left[key] = value
    return left
