"""What the engine cannot do yet: one row a field, deleted by the change that implements it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from parallel_core.config.base import Unknown
from parallel_core.findings import Finding

if TYPE_CHECKING:
    from parallel_core.config.all import AllConfig


class Unsupported(NamedTuple):
    """A value that the engine cannot act on yet."""

    flag: str
    target: str
    value: Any

    @property
    def finding(self) -> Finding:
        return Finding(self.flag, self.value, f"not implemented yet ({self.target})", "remove the flag")

    def __str__(self) -> str:
        return str(self.finding)


# Field -> the values that the engine does act on. Fields that are not listed are implemented.
IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "model_config.recompute_granularity": (None,),
    "model_config.hidden_act": ("gelu", "swiglu", "squared_relu", "relu", "silu"),
    "model_config.fp16_lm_cross_entropy": (False,),
    "model_config.fp32_residual_connection": (False,),
    "model_config.position_embedding_type": ("learned_absolute", "rope", "none"),
    "model_config.rope_scaling.type": (None, "llama3"),
    "model_config.sliding_window.size": (None,),
    "model_config.multi_latent_attention.enabled": (False,),
    "model_config.multi_token_prediction.num_layers": (None, 0),
    "model_config.scales.attention_cap": (None,),
    "model_config.embedding_layernorm": (False,),
    "model_config.output_layer_bias": (False,),
    "model_config.params_dtype": ("float32",),
    "model_config.compute_dtype": ("float32",),
    "model_config.fa_config.sparse_mode": (0, 2),
    "model_config.fa_config.pre_tokens": (1048576, 65536),
    "model_config.fa_config.next_tokens": (0,),
    "moe_config.num_experts": (None,),
    "lora_config.lora_rank": (0,),
    "parallel_config.expert_model_parallel_size": (1,),
    "parallel_config.recompute": (None,),
    "parallel_config.select_recompute": (None,),
    "parallel_config.select_comm_recompute": (None,),
    "training_config.convert_from_huggingface": (False,),
    "training_config.convert_to_huggingface": (False,),
    "training_config.grad_reduce_in_bf16": (False,),
    "training_config.bf16": (False,),
    "training_config.fp16": (False,),
    "training_config.use_distributed_optimizer": (False,),
    "training_config.zero_stage": (0,),
    "training_config.consecutive_hysteresis": (False,),
    "training_config.overlap_grad_reduce": (False,),
    "training_config.profile": (False,),
    "training_config.prefix": ("network",),
    "training_config.wrap_with_ddp": (True,),
    "training_config.enable_mem_align": (False,),
    "optimizer_config.decoupled_lr": (None,),
    "optimizer_config.decoupled_min_lr": (None,),
    "optimizer_config.apply_wd_to_qk_layernorm": (False,),
    "optimizer_config.decoupled_weight_decay": (True,),
    "dataset_config.instruction.enabled": (False,),
    "dataset_config.instruction.labels_in_data": (False,),
    "dataset_config.rampup_batch_size": (None,),
    "dataset_config.tokenizer_type": (None, "GPT2BPETokenizer", "NullTokenizer"),
    "dataset_config.drop_remainder": (True,),
}

# Fields that only say how something works, by the start of their name -> the field above, or one that the engine reads,
# that says whether it is there.
PART_OF: dict[str, str] = {
    "dataset_config.instruction.": "dataset_config.instruction.enabled",
    "dataset_config.tokenizer_model": "dataset_config.tokenizer_type",
    "lora_config.": "lora_config.lora_rank",
    "model_config.apply_query_key_layer_scaling": "model_config.compute_dtype",
    "model_config.attention_softmax_in_fp32": "model_config.compute_dtype",
    "model_config.masked_softmax_fusion": "model_config.compute_dtype",
    "model_config.multi_latent_attention.": "model_config.multi_latent_attention.enabled",
    "model_config.multi_token_prediction.": "model_config.multi_token_prediction.num_layers",
    "model_config.recompute_": "model_config.recompute_granularity",
    "model_config.rope_scaling.": "model_config.rope_scaling.type",
    "model_config.sliding_window.": "model_config.sliding_window.size",
    "model_config.transformer_impl": "model_config.compute_dtype",
    "moe_config.": "moe_config.num_experts",
    "optimizer_config.overlap_param_gather": "training_config.use_distributed_optimizer",
    "parallel_config.expert_tensor_parallel_size": "moe_config.num_experts",
    "training_config.accumulate_allreduce_grads_in_fp32": "model_config.params_dtype",
    "training_config.bucket_size": "training_config.overlap_grad_reduce",
    "training_config.delay_grad_reduce": "training_config.overlap_grad_reduce",
    "training_config.huggingface_model_type": "training_config.convert_from_huggingface",
    "training_config.loss_scale": "training_config.fp16",
    "training_config.min_loss_scale": "training_config.fp16",
    "training_config.profile_": "training_config.profile",
}


def is_missing(target: str, missing: Collection[str]) -> bool:
    """Whether a field is among `missing`, or only says how one of those works."""
    return target in missing or any(target.startswith(part) and whole in missing for part, whole in PART_OF.items())


def unsupported(config: AllConfig) -> list[Unsupported]:
    """The values of `config` that the engine cannot act on yet; as text each names its flag."""
    return list(_unsupported(config))


def _unsupported(config: AllConfig) -> Iterator[Unsupported]:
    for target, works in IMPLEMENTED.items():
        path, _, name = target.rpartition(".")
        section = attrgetter(path)(config)
        value = getattr(section, name)
        if not isinstance(value, Unknown) and value not in works:
            flag = next(entry.metadata["flag"] for entry in fields(section) if entry.name == name)
            yield Unsupported(flag, target, value)
