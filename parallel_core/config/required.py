"""Options that a description of a model may leave open and a training needs."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.all import AllConfig
from parallel_core.findings import Finding


def required_to_train(config: AllConfig) -> Iterator[Finding]:
    """One finding for each; how many iterations epochs come to may be left to the data."""
    training = config.training_config
    if config.optimizer_config.learning_rate is None:
        yield Finding("--lr", None, "must be given", "add it")
    if not (training.training_iters or training.epochs or training.skip_train):
        yield Finding("--train-iters or --train-samples or --num_train_epochs", None, "must be given", "add it")
