"""Short traced trainings, by which rates of single operations are corrected to those of a whole step, in which weights
and activations come from memory, not from a cache that the operation before has filled."""

from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.config import AllConfig
from parallel_core.config.serialise import build
from pynative import parallel_state
from pynative.training.utils import set_seed

_COMMON = {
    "parallel_config.world_size": 2,
    "model_config.num_layers": 2,
    "model_config.hidden_size": 512,
    "model_config.num_attention_heads": 8,
    "model_config.seq_length": 512,
    "model_config.max_position_embeddings": 512,
    "model_config.vocab_size": 4096,
    "model_config.hidden_act": "swiglu",
    "model_config.normalization": "RMSNorm",
    "model_config.add_bias_linear": False,
    "model_config.attention_dropout_rate": 0.0,
    "model_config.hidden_dropout_rate": 0.0,
    "dataset_config.tokenizer_type": "NullTokenizer",
    "dataset_config.batch_size": 1,
    "dataset_config.global_batch_size": 4,
    "optimizer_config.learning_rate": 1e-4,
    "parallel_config.threads": 1,
    "parallel_config.device_target": "CPU",
    "training_config.eval_iters": 0,
    "training_config.log_interval": 1000,
    "training_config.profiler.trace": True,
    "training_config.profiler.profile_step_start": 1,
    "training_config.profiler.profile_step_end": 1000,
}
"""Values by option path of a model of usual proportions, of which each of two ranks trains two micro-batches a step."""
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "long": {
        "model_config.seq_length": 2048,
        "model_config.max_position_embeddings": 2048,
        "model_config.hidden_size": 256,
        "model_config.num_attention_heads": 4,
        "model_config.vocab_size": 1024,
        "dataset_config.global_batch_size": 2,
    },
    "small": {
        "model_config.num_layers": 4,
        "model_config.seq_length": 128,
        "model_config.hidden_size": 128,
        "model_config.num_attention_heads": 4,
        "model_config.vocab_size": 1024,
        "dataset_config.global_batch_size": 16,
    },
    "vocabulary": {
        "model_config.hidden_size": 256,
        "model_config.num_attention_heads": 4,
        "model_config.vocab_size": 16384,
    },
    "tensor": {"parallel_config.tensor_model_parallel_size": 2, "dataset_config.global_batch_size": 2},
    "experts": {
        "parallel_config.expert_model_parallel_size": 2,
        "model_config.seq_length": 256,
        "moe_config.num_experts": 4,
        "moe_config.moe_token_dispatcher_type": "alltoall",
        "moe_config.moe_router_force_load_balancing": True,
    },
    "sharded": {"training_config.gradient.zero_stage": 3, "training_config.use_distributed_optimizer": True},
}
"""Options, by a training's name, in which it differs from `_COMMON`: most time is spent in attention ("long"), in the
host's launches ("small"), or in elementwise sweeps ("vocabulary"); ranks meet in many messages ("tensor", "experts",
"sharded")."""


class RandomTokens:
    """A GPT's data set of `samples` samples, each of `length` random ids below `vocabulary`."""

    def __init__(self, vocabulary: int, length: int, samples: int) -> None:
        self._tokens = np.random.default_rng(0).integers(0, vocabulary, (samples, length + 1), np.int32)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = self._tokens[number]
        positions, ones = np.arange(len(tokens) - 1, dtype=np.int32), np.ones(len(tokens) - 1, np.float32)
        return {"tokens": tokens[:-1], "labels": tokens[1:], "loss_mask": ones, "position_ids": positions}


def connect_as(config: AllConfig) -> None:
    """Lay the process groups of a configuration over the connection that an earlier training of this process has made,
    and set the configuration's seed. Does nothing without an earlier one: then `pretrain` does both."""
    if not parallel_state.model_parallel_is_initialized():
        return
    backend = parallel_state.get_backend()
    parallel_state.destroy_model_parallel()
    config.parallel_config.found_device = "CPU"
    parallel_state.initialize_from_config(config.parallel_config, backend)
    set_seed(config.training_config.seed)


def train(folder: Path, steps: int, rounds: int) -> None:
    """Train the models in turns, `rounds` times and `steps` steps each time, as the one of two ranks whose number the
    environment gives; the traces are left in `folder`/<model's name>/<number of the round, from 0>."""
    for turn in range(rounds):
        for model in MODELS:
            _train(model, folder / model / str(turn), steps)


def _train(model: str, folder: Path, steps: int) -> None:
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    run = {"training_config.training_iters": steps, "training_config.checkpoint.output_dir": str(folder)}
    config = build({**_COMMON, **MODELS[model], **run})
    connect_as(config)
    sizes = config.model_config
    samples = RandomTokens(sizes.vocab_size, sizes.seq_length, steps * config.batch_sizes.final)
    pretrain(
        lambda counts: (samples, None, None),
        lambda **where: GPTModel(sizes, **where),
        all_config=config,
    )
