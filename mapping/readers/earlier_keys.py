"""Keys in files of MindFormers and MindSpeed-Core-MS, as data: each one's meaning here."""

import re
from collections.abc import Mapping
from contextlib import suppress
from math import isclose
from typing import Any

from mapping.given import Demand
from mapping.readers import types
from mapping.readers.callbacks import CLIPPING, RUNNER, callbacks
from mapping.readers.meaning import Entries, Meaning, Values, each, not_done, nothing, parts, to, words
from parallel_core.config.recompute import LISTED

_STATIC_GRAPH = "the dynamic graph is not compiled: there is nothing to switch"
_BY_SCRIPT = "the network is what its sizes say"


def keep_prob(value: Any, entries: Entries) -> Values | str:
    """The meaning of the share of attention's probabilities that dropout keeps: the rate of dropout is 1 - the share;
    where the file gives that rate, too, the reason, a str, why the share does nothing. Both may be numbers as text, as
    YAML reads 1e-1. Raises ValueError for a share that is no number, and for one that is neither 1 nor 1 - the rate
    where the file gives the rate as a number."""
    names = ("attention_dropout", "attention_dropout_rate")
    rate = next((entries[key] for key in (f"model_config.{name}" for name in names) if key in entries), None)
    share, dropped = _number(value), _number(rate)
    wanted = 1 - (dropped or 0)
    if share is None or (dropped is not None and not any(isclose(share, one) for one in (1, wanted))):
        raise ValueError(f"must be 1 - attention_dropout, {wanted:g}")
    return {"attention_dropout_rate": 1 - share} if rate is None else "attention_dropout says it"


def _number(value: Any) -> float | None:
    """A number, also as text; None for anything else."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return float(value)
    return None


def _adapts(meaning: Meaning) -> Meaning:
    """The meaning of a key of adapters: `meaning`, but nothing where `use_lora: False` switches adapters off."""
    off = "use_lora is off"
    return lambda value, entries: off if entries.get("lora_config.use_lora") is False else meaning(value, entries)


_LINEARS = {
    **dict.fromkeys(("qkv_proj", "query_key_value"), "linear_qkv"),
    **dict.fromkeys(("out_proj", "dense"), "linear_proj"),
    **dict.fromkeys(("mapping", "dense_h_to_4h"), "linear_fc1"),
    **dict.fromkeys(("projection", "dense_4h_to_h"), "linear_fc2"),
}
"""MindFormers' name of a linear -> Megatron's."""


def _renamed(pattern: str) -> str:
    return re.sub(rf"(?<!\w)({'|'.join(_LINEARS)})(?!\w)", lambda found: _LINEARS[found[1]], pattern)


def target_cells(value: Any, entries: Entries) -> Values | str:
    """The fields that target_cells fills: target_modules, regular expressions for linears, and cells, the ranks and
    scales of single linears among them (None where there are none). Eight of MindFormers' names of linears, such as
    query_key_value, become Megatron's. Raises ValueError for other entries."""
    listed = value if isinstance(value, list) else [value]
    named = [entry for entry in listed if isinstance(entry, Mapping) and set(entry) == {"target_cells"}]
    cells = [entry for entry in listed if isinstance(entry, Mapping) and "cell" in entry]
    if len(named) + len(cells) != len(listed) or not all(isinstance(entry["target_cells"], list) for entry in named):
        raise ValueError("must list entries {target_cells: [names]} and {cell: name, rank, alpha}")
    return {
        "target_modules": [_renamed(str(pattern)) for entry in named for pattern in entry["target_cells"]],
        "cells": [{**entry, "cell": _renamed(str(entry["cell"]))} for entry in cells] or None,
    }


def zero(level: Any, entries: Entries) -> Values | str:
    if level not in ("z1", "z2", "z3"):
        raise ValueError("must be one of z1, z2, z3")
    return {"zero_stage": int(level[1]), "use_distributed_optimizer": True}


def clipping(value: Any, entries: Entries) -> Values:
    """The fields that grad_clip_kwargs fills: the limit, by default 1, of the gradients' global norm, or with
    GradClipByValue that of each element. Raises ValueError for another kind or key, and for what is no dictionary."""
    if not isinstance(value, Mapping) or value.keys() - {"grad_clip_type", "clip_value"}:
        raise ValueError("must have the keys grad_clip_type, clip_value")
    kind, limit = value.get("grad_clip_type") or "ClipGlobalNorm", value.get("clip_value", 1.0)
    fields = {
        "ClipGlobalNorm": {"clip_grad": limit},
        "GradClipByValue": {"clip_grad": 0.0, "clip_grad_value": limit},
    }
    if not isinstance(kind, str) or kind not in fields:
        raise ValueError(f"grad_clip_type must be one of {', '.join(fields)}")
    return fields[kind]


def hot_experts(value: Any, entries: Entries) -> Values | str:
    is_on = entries.get("moe_config.enable_cold_hot_expert")
    return {"hot_expert_num": value} if is_on else "enable_cold_hot_expert is off"


def cold_hot_experts(value: Any, entries: Entries) -> Values:
    """The meaning of enable_cold_hot_expert: if true, a demand that the field `hot_expert_num` is not 0; if false,
    hot_expert_num is 0."""
    rule = "needs hot_expert_num, the number of experts that every rank gets a copy of"
    return {"": Demand(value, "hot_expert_num", bool, rule, "add it")} if value else {"hot_expert_num": 0}


_STEPS = ("runner_config.gradient_accumulation_steps", "gradient_accumulation_steps")
_MICRO_BATCHES = ("parallel_config.micro_batch_num", "dataset_config.micro_batch_num")
_STAGES = ("parallel_config.pipeline_stage", "parallel_config.pipeline_model_parallel_size")


def _of(entries: Entries, keys: tuple[str, ...]) -> Any:
    """The value of the first of these keys that has one; None if none has."""
    return next((entries[key] for key in keys if entries.get(key) is not None), None)


def _counts_micro_batches(others: tuple[str, ...], in_pipelines: bool) -> Meaning:
    """The meaning of one of two keys for the micro-batches of a step. others: the other key's names. A 1 fills nothing
    where the other key has another value; in a pipeline only `micro_batch_num` counts (in_pipelines: this key is that
    one)."""

    def read(value: Any, entries: Entries) -> Values | str:
        other, is_pipelined = _of(entries, others), _of(entries, _STAGES) not in (None, 1)
        counts = other is None or (is_pipelined and in_pipelines)
        if counts or not (is_pipelined or value == 1 != other):
            return {"micro_batch_num": value}
        return f"{others[0].rpartition('.')[2]} {other} says it"

    return read


_accumulation, _micro_batch_num = _counts_micro_batches(_MICRO_BATCHES, False), _counts_micro_batches(_STEPS, True)


_LAZY_INLINE = (
    "lazy_inline use_lazy_inline enable_lazy_inline ENABLE_LAZY_INLINE enable_lazy_inline_no_pipeline "
    "ENABLE_LAZY_INLINE_NO_PIPELINE"
)
_MODEL: dict[str, Meaning] = {
    **each("type arch model_type", nothing(_BY_SCRIPT)),
    "use_fused_rope": to("apply_rope_fusion"),
    "use_fused_swiglu": to("apply_swiglu_fusion"),
    **each("softmax_compute_dtype softmax_compute_type", types.softmax),
    "residual_connection_dtype": types.residual,
    **each(
        "layernorm_compute_dtype layernorm_compute_type",
        types.either("norms compute in float32 always, and round once to their input's type"),
    ),
    "position_embedding_type": lambda value, entries: {
        "position_embedding_type": "learned_absolute" if value == "absolute" else value
    },
    "rotary_config.rotary_percent": to("rotary_percent"),
    "rotary_config.rotary_interleaved": to("rotary_interleaved"),
    "rotary_config.seq_len_interpolation_factor": to("rotary_seq_len_interpolation_factor"),
    "rotary_config.rotary_base": to("rotary_base"),
    "fa_config.keep_prob": keep_prob,
    "mask_func_type": words(
        dict.fromkeys(("attn_mask_add", "attn_mask_fill"), "a masked score has no weight, in either way")
    ),
    **each("init_method output_layer_init_method", words({"normal": "weights start from a normal distribution"})),
    "bias_init": words({"zeros": "biases start at zero"}),
    "attention_type": words({"self_attn": "decoders attend to themselves"}),
    "head_skip_weight_param_allocation": nothing("untie_embeddings_and_output_weights says it"),
    **each(
        "flatten_labels_and_input_mask clone_scatter_output_in_embedding bias_dropout_fusion",
        nothing("the result is the same"),
    ),
    "distribute_saved_activations": to("recompute_slice_activation"),
    "pp_interleave_num": to("virtual_pipeline_model_parallel_size"),
    "offset": lambda value, entries: {"offset": value} if value else "layers are shared evenly",
    "enable_flash_sp": not_done("FlashSP as a form of context parallelism"),
    "parallel_position_embedding": not_done("position tables that are cut over ranks"),
    **each(
        "use_query_layer use_visual_encoder use_retriever retro_add_retriever out_hidden_size encoder_num_layers "
        "decoder_num_layers",
        not_done("other networks than a decoder"),
    ),
}
_TRAINING: dict[str, Meaning] = {
    "grad_clip_kwargs": clipping,
    "best_metric_comparison": not_done("keeping the best checkpoint"),
    "eval_metric": words({"perplexity": "evaluation logs the loss, whose exponential it is"}),
    "loss_reduction": words({"mean": "losses are averaged over tokens"}),
    **each("enable_compile_cache compile_cache_path", nothing(_STATIC_GRAPH)),
}
_MOE: dict[str, Meaning] = {
    "expert_num": to("num_experts"),
    "capacity_factor": to("moe_expert_capacity_factor"),
    "num_experts_chosen": to("moe_router_topk"),
    "use_gmm": to("moe_grouped_gemm"),
    "enable_gmm_safe_tokens": to("enable_gmm_safe_tokens"),
    "use_self_defined_alltoall": nothing("the result is the same"),
    "callback_moe_droprate": to("moe_log_drop_rate"),
    "enable_cold_hot_expert": cold_hot_experts,
    "hot_expert_num": hot_experts,
    "moe_module_name": nothing("layers know their experts"),
    "update_step": to("hot_expert_update_step"),
}
_GATHERED_AGAIN = "parallel_optimizer_comm_recompute"
_RESIDENT: dict[str, Meaning] = {
    "param_resident": words({True: {_GATHERED_AGAIN: False}, False: "nothing is kept that was gathered"}),
    "param_resident_rate": nothing("with param_resident: True all weights are kept until the update"),
}
"""Keys of weights that were gathered for the forward (ZeRO stage 3) and stay for the backward."""
_PARALLEL: dict[str, Meaning] = {
    "data_parallel": nothing("it is what the other sizes leave"),
    "model_parallel": to("tensor_model_parallel_size"),
    "pipeline_stage": to("pipeline_model_parallel_size"),
    "expert_parallel": to("expert_model_parallel_size"),
    "context_parallel": to("context_parallel_size"),
    "use_seq_parallel": to("sequence_parallel"),
    "micro_batch_num": _micro_batch_num,
    "pp_interleave_num": to("virtual_pipeline_model_parallel_size"),
    "deterministic_mode": to("deterministic_mode"),
    "recv_dtype": types.either("stages send each other what they compute, in its type"),
    "zero_level": zero,
    "gradient_accumulation_fusion": nothing("gradients are added where they are kept in any case"),
    "use_cpu_initialization": nothing("initial values are the same, wherever they are computed"),
    **each("vocab_emb_dp gradient_aggregation_group micro_batch_interleave_num", nothing(_STATIC_GRAPH)),
    **{
        f"recompute_config.{name}": to(f"recompute_config.{name}")
        for name in (*LISTED, "mp_comm_recompute", "recompute_slice_activation")
    },
    **_RESIDENT,
    f"recompute_config.{_GATHERED_AGAIN}": to(_GATHERED_AGAIN),
}
_DATASET: dict[str, Meaning] = {
    "micro_batch_num": _micro_batch_num,
    "dataset_dir": nothing("data is given by data_path, or by the script's own loader"),
    "data_layout": words(dict.fromkeys(("BSH", "SBH"), "the order of dimensions inside does not change the result")),
    "shuffle": lambda value, entries: {"dataloader_type": "cyclic"} if value else "data is read in its order",
    "train_samples": lambda value, entries: (
        {"training_config.train_samples": value} if value else "training_iters says it"
    ),
}
_OPTIMIZER: dict[str, Meaning] = {
    "fused_num": to("pma_fused_num"),
    "interleave_step": to("pma_interleave_step"),
    "fused_algo": to("pma_fused_algo"),
    "ema_alpha": to("pma_ema_alpha"),
    "learning_rate_scheduler_kwargs": parts(
        {
            "warmup_steps": to("lr_warmup_iters"),
            "decay_steps": to("lr_decay_iters"),
            "total_steps": to("lr_decay_iters"),
            "learning_rate": to("learning_rate"),
            "warmup_lr_init": to("lr_warmup_init"),
            **each("lr_end end_learning_rate min_lr", to("min_lr")),
            "use_cosine": words({True: {"lr_decay_style": "cosine"}, False: {"lr_decay_style": "linear"}}),
            "power": words({1: "the decay without a cosine is linear"}),
        }
    ),
    "weight_decay_kwargs": not_done("a weight decay of its own for each group"),
    "zero_config.cpu_offload": to("cpu_offload_optimizer"),
    "zero_config.allreduce_after_grad_accumulation": nothing("only memory and the order of communication change"),
    **{f"zero_config.{key}": meaning for key, meaning in _RESIDENT.items()},
    **_RESIDENT,
    "zero_config.grad_allreduce_op": words(
        {"mean": "gradients are averaged as losses are", "sum": "of one replica it is the mean"}
    ),
    "no_weight_decay_params": lambda value, entries: (
        "norms and biases are spared" if value in ([], ["Default_Setup"]) else {"no_weight_decay_params": value}
    ),
}
_LORA: dict[str, Meaning] = {
    "use_lora": lambda value, entries: {"lora_rank": entries.get("lora_config.lora_rank", 8) if value else 0},
    "lora_rank": _adapts(to("lora_rank")),
    "lora_alpha": _adapts(to("lora_alpha")),
    "lora_dropout": _adapts(to("lora_dropout")),
    "target_cells": _adapts(target_cells),
}


def _under(section: str, table: Mapping[str, Meaning]) -> dict[str, Meaning]:
    return {f"{section}.{key}": meaning for key, meaning in table.items()}


EARLIER: dict[str, Meaning] = {
    **_under("model_config", _MODEL),
    **_under("training_config", _TRAINING),
    **_under("moe_config", _MOE),
    **_under("parallel_config", _PARALLEL),
    **_under("dataset_config", _DATASET),
    **_under("optimizer_config", _OPTIMIZER),
    **_under("lora_config", _LORA),
    f"recompute_config.{_GATHERED_AGAIN}": to(_GATHERED_AGAIN),
    **_under("runner_wrapper", RUNNER),
    **_under(
        "runner_config",
        {
            "epochs": to("epochs"),
            "batch_size": to("dataset_config.batch_size"),
            "gradient_accumulation_steps": _accumulation,
            **each("sink_mode sink_size", nothing(_STATIC_GRAPH)),
        },
    ),
    **CLIPPING,
    "gradient_accumulation_steps": _accumulation,
    "type": RUNNER["type"],
    "arch": nothing(_BY_SCRIPT),
    **each("callback callbacks", callbacks),
    **each("parallel context", nothing(_STATIC_GRAPH)),
    "general_config": nothing("nothing here reads a script's own keys; a flag of its extra_args_provider does"),
    **{
        f"{section}{name}": nothing(_STATIC_GRAPH)
        for section in ("", "model_config.", "parallel_config.", "training_config.", "runner_config.")
        for name in _LAZY_INLINE.split()
    },
}
"""Key -> its meaning. `model.model_config` and `model.arch` are read as if they stood outside of `model`."""
