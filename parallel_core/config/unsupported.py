"""What the engine cannot do yet: one row a field, deleted by the change that implements it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from parallel_core.config.all import AllConfig


class Unsupported(NamedTuple):
    """A value that the engine cannot act on yet."""

    flag: str
    target: str
    value: Any

    def __str__(self) -> str:
        return f"{self.flag} {self.value}: not implemented yet ({self.target}); remove the flag"


# Field -> the values that the engine does act on. Fields that are not listed are implemented.
IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "parallel_config.sequence_parallel": (False,),
    "parallel_config.context_parallel_size": (1,),
    "parallel_config.expert_model_parallel_size": (1,),
    "parallel_config.virtual_pipeline_model_parallel_size": (None, 1),
    "parallel_config.num_layers_per_virtual_pipeline_stage": (None,),
    "parallel_config.num_layer_list": (None,),
    "parallel_config.noop_layers": (None,),
    "parallel_config.decoder_first_pipeline_num_layers": (None,),
    "parallel_config.decoder_last_pipeline_num_layers": (None,),
    "parallel_config.standalone_embedding_stage": (False,),
    "parallel_config.pipeline_schedule": (None, "1f1b"),
    "parallel_config.recompute": (None,),
    "parallel_config.select_recompute": (None,),
    "parallel_config.select_comm_recompute": (None,),
    "model_config.recompute_granularity": (None,),
    "model_config.hidden_act": ("gelu", "swiglu", "squared_relu"),
    "model_config.fp16_lm_cross_entropy": (False,),
    "model_config.fp32_residual_connection": (False,),
    "model_config.use_rope_scaling": (False,),
    "model_config.params_dtype": ("float32",),
    "model_config.compute_dtype": ("float32",),
    "training_config.bf16": (False,),
    "training_config.fp16": (False,),
    "training_config.use_distributed_optimizer": (False,),
    "training_config.overlap_grad_reduce": (False,),
    "training_config.profile": (False,),
    "dataset_config.rampup_batch_size": (None,),
    "moe_config.num_experts": (None,),
    "lora_config.lora_rank": (0,),
}


def unsupported(config: AllConfig) -> list[Unsupported]:
    """The values of `config` that the engine cannot act on yet; as text each names its flag."""
    return list(_unsupported(config))


def _unsupported(config: AllConfig) -> Iterator[Unsupported]:
    for target, works in IMPLEMENTED.items():
        section_name, name = target.split(".")
        section = getattr(config, section_name)
        value = getattr(section, name)
        if value not in works:
            flag = next(entry.metadata["flag"] for entry in fields(section) if entry.name == name)
            yield Unsupported(flag, target, value)
