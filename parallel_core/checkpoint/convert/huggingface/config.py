"""Translation of a family's config.json to our settings and back."""

from collections.abc import Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from parallel_core.checkpoint import networks
from parallel_core.checkpoint.convert.huggingface.family import Family
from parallel_core.checkpoint.convert.huggingface.kinds import REQUIRED, Field, Group, keys_of
from parallel_core.checkpoint.convert.huggingface.tables import FAMILIES, OTHER_NAMES
from parallel_core.config import AllConfig, serialise
from parallel_core.config.tree import FLAG_OF, OF_MODEL

_READ = {"model_type", "quantization_config"}
"""Keys that are read but are no setting: for the family and the storage of the weights."""

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
        "suppress_tokens", "begin_suppress_tokens", "num_logits_to_keep", "output_scores",
        "return_dict_in_generate", "task_specific_params",
    ),
    "other tasks, and what else a forward returns": (
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "num_labels", "id2label", "label2id", "problem_type", "finetuning_task", "classifier_dropout", "is_decoder",
        "is_encoder_decoder", "cross_attention_hidden_size", "output_attentions", "output_hidden_states",
        "output_router_logits", "return_dict", "chunk_size_feed_forward",
    ),
    "training, which flags say (--moe-aux-loss-coeff, --moe-input-jitter-eps, --hidden-dropout)": (
        "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "embd_pdrop", "resid_pdrop",
        "gradient_checkpointing", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank",
        "rescale_prenorm_residual", "residual_in_fp32", "mamba_ssm_cache_dtype",
    ),
    "sizes and forms that another key, or a tensor's shape, says as well": (
        "pretraining_tp", "reorder_and_upcast_attn", "n_ctx", "max_sequence_length", "num_nextn_predict_layers",
        "head_dim", "qk_head_dim", "num_key_value_heads", "mlp_expansion_factor",
    ),
    "the length of a chunk, which changes the order of sums alone": ("chunk_size", "mamba_chunk_size"),
}  # fmt: skip
"""Subject -> keys about it that no setting takes over, unless the model's family maps them."""

_REASON_OF = {key: reason for reason, keys in _REASONS.items() for key in keys}
UNKNOWN = "something that is not known here, and that transformers' class of today does not read either"


def left_out(config: Mapping[str, Any], family: Family) -> dict[str, list[str]]:
    """Subject, such as training -> keys of this config.json about that subject which the family does not map. All keys
    that are not known here are under one further subject; `model_type` and `quantization_config` are not listed."""
    found: dict[str, list[str]] = {}
    mapped = _READ.union(*map(keys_of, family.fields))
    for key in config:
        if key not in mapped:
            found.setdefault(_REASON_OF.get(key, UNKNOWN), []).append(key)
    return found


def family_of(config: Mapping[str, Any]) -> Family:
    """The first family that has the `model_type` of config.json and whose `reads` is true of it. Raises ValueError if
    there is none."""
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type == family.model_type and family.reads(config):
            return family
    raise ValueError(f"config.json: model_type {model_type!r} is not known; known are {_types()}")


def _types() -> str:
    """The model types that are known, in a message."""
    return ", ".join(dict.fromkeys(family.model_type for family in FAMILIES))


def settings_of(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Section -> option -> value of our configuration, from a family's config.json. Raises ValueError for a required
    key that is missing (KeyError for some that a `Group` needs), and for a value that is not known here."""
    found = dict(family.fixed)
    for field in family.fields:
        if isinstance(field, Field):
            value = field.value_in(config)
            if value is None and field.default is REQUIRED:
                raise ValueError(f"config.json: {field.key} is missing")
            value = field.default if value is None else value
            if value is not None:
                found[field.path] = _translated(field, value)
        elif isinstance(field, Group):
            found |= field.to_ours({key: config[key] for key in field.keys if key in config})
        elif field.key in config and config[field.key] not in field.values:
            raise ValueError(
                f"config.json: {field.key} {config[field.key]!r} is not known here, only {field.values[0]!r}"
            )
    found["model_config.seq_length"] = found["model_config.max_position_embeddings"]
    nested: dict[str, Any] = {}
    for path, value in found.items():
        if value is not None:
            serialise.put(nested, path, value)
    return nested


def _translated(field: Field, value: Any) -> Any:
    try:
        return field.to_ours(value)
    except KeyError as error:
        raise ValueError(f"config.json: {field.key} {value!r} is not known here") from error


def matching_family(ours: AllConfig, model_type: str | None = None) -> Family:
    """The first family, with a `model_type` (MindSpeed-LLM's names are known, too) the first of that type, whose
    config.json can describe the configuration's network. Raises ValueError with each family's misfits, or for a
    `model_type` that is not known."""
    model_type = OTHER_NAMES.get(model_type or "", model_type)
    problems = []
    for family in FAMILIES:
        if model_type in (None, family.model_type):
            wrong = [
                str(networks.Difference(path, FLAG_OF[path], value, meant))
                for path, value in family.fixed.items()
                if (meant := networks.meant(path, ours)) != value
            ]
            problem = f"its models have {', '.join(wrong)}" if wrong else _unsaid(ours, family)
            if problem is None:
                return family
            problems.append(f"{family.model_type}: {problem}")
    if not problems:
        raise ValueError(f"--huggingface-model-type {model_type}: not known; known are {_types()}")
    raise ValueError("no model of HuggingFace's that is known here is like this one:\n" + "\n".join(problems))


def _unsaid(ours: AllConfig, family: Family) -> str | None:
    """A clause naming settings of this network that no key of the family's config.json has; None if, read back, the
    settings are the same."""
    further = ours.model_config.multi_token_prediction
    if further.depths and not family.predicts_further:
        return "it has no multi-token prediction"
    try:
        back = settings_of(config_of(ours, family), family)
    except (ValueError, KeyError) as error:
        return str(error)
    back["model_config"]["multi_token_prediction"] = asdict(further)  # the parameters tell it, not config.json
    differs = [path for path, *_ in networks.differences(ours, serialise.config_of(with_vocabulary(back)))]
    return f"its config.json cannot say {', '.join(differs)}" if differs else None


def with_vocabulary(ours: dict[str, Any]) -> dict[str, Any]:
    """The settings (section -> option -> value) with the value of `unpadded_vocab_size` for `vocab_size`, too: those of
    an embedding without padding. A copy, in which sections but `model_config` are the same objects."""
    network = ours["model_config"]
    return {**ours, "model_config": {**network, "vocab_size": network["unpadded_vocab_size"]}}


def config_of(ours: AllConfig, family: Family) -> dict[str, Any]:
    """The content of the config.json that describes the configuration's network as one of the family. Raises ValueError
    or KeyError for some settings that its keys cannot say; others are left out (`matching_family` finds them)."""
    flat = {path: attrgetter(path)(ours) for path in OF_MODEL}
    config: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_type}
    for field in family.fields:
        if isinstance(field, Field):
            value = flat[field.path]
            config[field.key] = None if value is None else field.to_theirs(value)
        elif isinstance(field, Group):
            config |= field.to_theirs(flat)
        else:
            config[field.key] = field.values[0]
    return config
