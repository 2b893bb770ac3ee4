"""All sections together: what follows from several of them, and what must hold between them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from parallel_core.config.base import Config, Unjudged, Unknown, complain, judge
from parallel_core.config.dataset import DatasetConfig
from parallel_core.config.fused import fused_operators
from parallel_core.config.lora import LoraConfig
from parallel_core.config.model import ModelConfig
from parallel_core.config.moe import MoEConfig
from parallel_core.config.optimizer import OptimizerConfig
from parallel_core.config.parallel import ParallelConfig
from parallel_core.config.rules import RULES
from parallel_core.config.training import TrainingConfig
from parallel_core.partition import virtual_stages
from parallel_core.schedules.generators import schedule_name


@dataclass(kw_only=True)
class AllConfig:
    """The one source of truth of a run. Building it fills what follows from several sections and checks every rule.

    Raises `ConfigError` (a `ValueError`) with all findings. The model section afterwards knows its siblings.
    """

    model_config: ModelConfig
    training_config: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer_config: OptimizerConfig = field(default_factory=OptimizerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    dataset_config: DatasetConfig = field(default_factory=DatasetConfig)
    moe_config: MoEConfig = field(default_factory=MoEConfig)
    lora_config: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        model = self.model_config
        model.parallel_config, model.dataset_config = self.parallel_config, self.dataset_config
        model.training_config, model.moe_config = self.training_config, self.moe_config
        model.lora_config = self.lora_config
        self._derive()
        complain(judge(RULES, self))

    def _derive(self) -> None:
        data, parallel, schedule = self.dataset_config, self.parallel_config, self.optimizer_config
        layers = self.model_config.num_layers
        parallel.fill("virtual_pipeline_model_parallel_size", lambda: virtual_stages(layers, parallel))
        data.fill(
            "global_batch_size",
            lambda: data.batch_size * parallel.data_parallel_size * (data.micro_batch_num or self._smallest_round()),
        )
        data.fill(
            "micro_batch_num", lambda: max(1, data.global_batch_size // (data.batch_size * parallel.data_parallel_size))
        )
        if self.training_config.train_samples is None:
            schedule.fill("lr_decay_iters", lambda: self.training_config.training_iters or None)
        else:
            schedule.fill("lr_decay_samples", lambda: self.training_config.train_samples)
            self._iterations_of_samples()
        with suppress(Unjudged):
            parallel.fused = fused_operators(self.model_config)
        parallel.fill("expert_tensor_parallel_size", lambda: parallel.tensor_model_parallel_size)
        self.moe_config.fill("moe_ffn_hidden_size", lambda: self.model_config.ffn_hidden_size)

    def _smallest_round(self) -> int:
        """The fewest micro-batches that a schedule takes: interleaving goes through the chunks in whole groups."""
        parallel = self.parallel_config
        if schedule_name(parallel) != "interleaved":
            return 1
        return parallel.microbatch_group_size_per_virtual_pipeline_stage or parallel.pipeline_model_parallel_size

    def _iterations_of_samples(self) -> None:
        with suppress(Unjudged):
            samples = self.training_config.train_samples or 0
            self.training_config.training_iters = samples // self.dataset_config.global_batch_size

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Sections by name, fields by name, without the links between sections; what is not known is none."""
        return {section.name: _plain(getattr(self, section.name)) for section in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value) if entry.repr}
    return None if isinstance(value, Unknown) else value
