"""The configuration of a run, as plain objects: sections of options, and the rules between them."""

from parallel_core.config.all import AllConfig
from parallel_core.config.dataset import DatasetConfig
from parallel_core.config.families import SlidingWindowConfig
from parallel_core.config.lora import LoraConfig
from parallel_core.config.model import FlashAttentionConfig, ModelConfig, TransformerConfig
from parallel_core.config.moe import MoEConfig
from parallel_core.config.optimizer import OptimizerConfig
from parallel_core.config.parallel import ModelParallelConfig, ParallelConfig
from parallel_core.config.training import TrainingConfig
from parallel_core.findings import ConfigError, Finding
