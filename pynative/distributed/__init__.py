"""Data parallelism: parameters and gradients in flat buffers, and their reduction."""

from pynative.distributed.distributed_data_parallel import DistributedDataParallel, DistributedDataParallelConfig
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer

__all__ = ["DistributedDataParallel", "DistributedDataParallelConfig", "ParamAndGradBuffer"]
