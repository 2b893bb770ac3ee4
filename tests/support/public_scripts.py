"""Shrunk launch scripts of the public, trained inside a rank of a test's pool."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.engine import config_of, job


class Step(NamedTuple):
    """What is compared of a step."""

    loss: float
    gradient_norm: float
    weights: float
    """The sum of this rank's after the step."""


def train_script(backend, argv: Sequence[str], folder: Path) -> list[Step]:
    """Train what a command line says, as examples/gpt/pretrain_gpt.py does."""
    from parallel_core.data.blended import build_train_valid_test_datasets
    from parallel_core.data.from_config import gpt_dataset_config
    from pynative.parameter import trainable
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    found = []

    class Steps(Callback):
        def on_step_end(self, state):
            weights = sum(float(p.asnumpy().astype("float64").sum()) for p in trainable(state.model))
            found.append(Step(state.result.loss, state.result.gradient_norm, weights))

    os.chdir(folder)
    config = config_of(argv, backend.world_size)
    data = gpt_dataset_config(config)
    with job(backend, config):
        pretrain(
            lambda samples: build_train_valid_test_datasets(data, samples),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[Steps()],
        )
    return found
