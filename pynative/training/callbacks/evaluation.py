"""Evaluate on held-out data every so many iterations."""

import math
from collections.abc import Iterator

from pynative.log import log
from pynative.training.callbacks.base import Callback, TrainingState


class EvaluationCallback(Callback):
    """--eval-interval, --eval-iters."""

    def __init__(self, data_iterator: Iterator, interval: int, batches: int) -> None:
        self.data_iterator, self.interval, self.batches = data_iterator, interval, batches

    def on_step_end(self, state: TrainingState) -> None:
        if state.iteration % self.interval == 0:
            evaluate(state, self.data_iterator, self.batches)


def evaluate(state: TrainingState, data_iterator: Iterator, batches: int) -> None:
    """Log the loss over so many global batches."""
    loss = state.step_cell.evaluate(data_iterator, batches)
    state.metrics["validation_loss"] = loss
    log(f"Evaluation: Step: {state.iteration}, Loss: {loss:.16f}, Perplexity: {math.exp(min(loss, 20.0)):.4f}")
