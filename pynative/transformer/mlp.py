"""The feed-forward half of a layer, under the name by which models import it."""

from pynative.tensor_parallel.mlp import ParallelMLP

__all__ = ["ParallelMLP"]
