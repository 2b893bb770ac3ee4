"""Curves of a run for other programs: TensorBoard, W&B, MLflow, SwanLab."""

from pynative.training.callbacks.writers.callback import WritersCallback, writers_callbacks

__all__ = ["WritersCallback", "writers_callbacks"]
