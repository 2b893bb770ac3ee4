"""Data parallelism: parameters and gradients in flat buffers, and their reduction."""

from pynative.distributed.bucket import ParamAndGradBucket as Bucket
from pynative.distributed.distributed_data_parallel import DistributedDataParallel, DistributedDataParallelConfig
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer
