"""The sections of a configuration, side by side."""

from dataclasses import dataclass, field

from parallel_core.config.dataset import DatasetConfig
from parallel_core.config.lora import LoraConfig
from parallel_core.config.model import ModelConfig
from parallel_core.config.moe import MoEConfig
from parallel_core.config.optimizer import OptimizerConfig
from parallel_core.config.parallel import ParallelConfig
from parallel_core.config.recompute import RecomputeConfig
from parallel_core.config.training import TrainingConfig
from parallel_core.findings import shown


@dataclass(kw_only=True)
class Sections:
    """The sections of a configuration side by side, as rules between several of them read it; the subclass `AllConfig`
    fills options that follow from several sections, and checks those rules."""

    model_config: ModelConfig
    training_config: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer_config: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    dataset_config: DatasetConfig = field(default_factory=DatasetConfig)
    moe_config: MoEConfig = field(default_factory=MoEConfig)
    lora_config: LoraConfig = field(default_factory=LoraConfig)
    recompute_config: RecomputeConfig = field(default_factory=RecomputeConfig)

    @property
    def has_too_many_stages(self) -> bool:
        """Whether there are more pipeline stages than layers, with the embedding and the output layer counted as one
        each."""
        return self._exceeds_layers(self.parallel_config.pipeline_model_parallel_size)

    @property
    def has_too_many_chunks(self) -> bool:
        """Whether there are more chunks, of all pipeline stages together, than layers, with the embedding and the
        output layer counted as one each."""
        return self._exceeds_layers(self.parallel_config.chunks * self.parallel_config.pipeline_model_parallel_size)

    def _exceeds_layers(self, parts: int) -> bool:
        return parts > self.model_config.num_layers + 2  # the embedding and the output layer may count as layers

    @property
    def against_pairs(self) -> str:
        """The first flag, as messages show it, with which no forward can run beside a backward on a stage
        (recomputation of whole layers, offloading of activations, ZeRO stages 2 and 3); "" if there is none."""
        recompute, stage = self.recompute_config, self.training_config.gradient.zero_stage
        found = {
            "--recompute-granularity full": recompute.recompute_granularity == "full",
            shown("--recompute", recompute.recompute): recompute.recompute is not None,
            recompute.offload_flag or "": recompute.offload_flag is not None,
            f"--zero-stage {stage}": stage >= 2,
        }
        return next((flag for flag, is_there in found.items() if is_there), "")

    @property
    def undivided(self) -> tuple[str, ...]:
        """Names, for messages, of the sizes that tensor-parallel ranks (of experts: expert-tensor-parallel ones) do not
        divide, among key/value heads and the widths of feed-forward blocks, experts and shared experts."""
        moe, parallel = self.moe_config, self.parallel_config
        tensor, has_experts = parallel.tensor_model_parallel_size, moe.num_experts is not None
        sizes = {
            "heads": (self.model_config.num_query_groups, tensor),
            "feed-forward width": (self.model_config.ffn_hidden_size, tensor),
            "experts' width": (moe.moe_ffn_hidden_size * has_experts, parallel.expert_tensor_parallel_size),
            "shared experts' width": ((moe.moe_shared_expert_intermediate_size or 0) * has_experts, tensor),
        }
        return tuple(name for name, (size, ranks) in sizes.items() if size % ranks)
