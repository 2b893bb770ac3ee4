"""The callback that evaluates on held-out data every so many iterations."""

import math
from collections.abc import Iterator
from typing import Any

from pynative import parallel_state
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.data import RunData


class EvaluationCallback(RunCallback):
    """--eval-interval, --eval-iters: every `interval` iterations logs the loss over `batches` global batches of the
    validation data; without such data rank 0 logs at the start that nothing is evaluated."""

    def __init__(self, data: RunData, interval: int, batches: int) -> None:
        self.data, self.interval, self.batches = data, interval, batches

    def on_train_begin(self, state: TrainingState) -> None:
        if not self.data.is_evaluated and parallel_state.get_global_rank() == 0:
            log(
                f"No evaluation: --eval-interval {self.interval} and --eval-iters {self.batches} are given, but no "
                "validation data: give them by --valid-data-path, by a larger share in --split or more documents, or "
                "pass valid_data_loader"
            )

    def on_step_end(self, state: TrainingState) -> None:
        if self.data.is_evaluated and state.iteration % self.interval == 0:
            evaluate(state, self.data.valid, self.batches)


def evaluate(state: TrainingState, data_iterator: Iterator[Any] | None, batches: int) -> None:
    """Log the loss and perplexity (at most e^20) over the next `batches` global batches of `data_iterator`, and store
    the loss in `state.metrics["validation_loss"]`. data_iterator: None on a rank that reads no data. All ranks call
    this."""
    loss = state.step_cell.evaluate(data_iterator, batches)
    state.metrics["validation_loss"] = loss
    log(f"Evaluation: Step: {state.iteration}, Loss: {loss:.16f}, Perplexity: {math.exp(min(loss, 20.0)):.4f}")
