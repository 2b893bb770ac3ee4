"""The dense feed-forward block, imported here under Megatron's module name."""

from pynative.tensor_parallel.mlp import ParallelMLP

__all__ = ["ParallelMLP"]
