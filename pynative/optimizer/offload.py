"""Optimizer states in host memory or in a file, and their update there.

"ZeRO-Offload" (Ren et al., 2021): the device has weights and gradients, the host states and float32 weights; a gradient
goes to the host, the updated weight comes back. "ZeRO-Infinity" (Rajbhandari et al., 2021): the states are in a file on
a fast disk, of which the host's memory holds what is in use.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor

from parallel_core.buffers import Span
from parallel_core.config import OptimizerConfig
from parallel_core.config.offload import OffloadConfig
from pynative import in_place, kernels
from pynative.distributed.flat_memory import Allocate, FlatMemory
from pynative.optimizer.sweep import Step, Sweep
from pynative.optimizer.updates import UPDATES


def in_host_memory(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros there."""
    return np.zeros(size, dtype)


class InFiles:
    """Zeros in files of a directory, mapped into memory. The files have no name any more: they are gone when the
    process is, however it ends. ValueError for a directory that cannot be written to, or where there
    is no room: all of it is taken at once, because a disk that is full later ends the process."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self(1, np.dtype(np.float32))
        except OSError as error:
            raise ValueError(f"--nvme-path {directory}: cannot be written to: {error}") from error

    def __call__(self, size: int, dtype: np.dtype) -> np.ndarray:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            wanted = max(1, size * dtype.itemsize)
            try:
                os.posix_fallocate(file.fileno(), 0, wanted)
            except OSError as error:
                raise ValueError(
                    f"--nvme-path {self._directory}: no room for {wanted} bytes of the optimizer's states: {error}; "
                    f"free some, give another directory, or lower --optimizer-offload-fraction"
                ) from error
            return np.memmap(file, dtype, mode="r+", shape=(size,)).view(np.ndarray)


def allocate_states(config: OffloadConfig) -> Allocate | None:
    """Where the states go that are not kept on the device; none: all are."""
    if not config.offloads_optimizer:
        return None
    return in_host_memory if config.nvme_path is None else InFiles(config.nvme_path)


class SplitMemory:
    """States of which a part is kept elsewhere, under the plan's addresses."""

    def __init__(self, elsewhere: Sequence[Span], rest: Sequence[Span], dtype: str, allocate: Allocate) -> None:
        places = ((elsewhere, allocate), (rest, None))
        self.parts = [FlatMemory(spans, dtype, where) for spans, where in places if spans]

    @property
    def bytes(self) -> int:
        """Allocated, in all places."""
        return sum(part.bytes for part in self.parts)

    def holds(self, span: Span) -> bool:
        """Whether one of the parts has these elements."""
        return any(part.holds(span) for part in self.parts)

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start` of the plan."""
        span = Span(start, start + prod(shape))
        return next(part for part in self.parts if part.holds(span)).view(start, shape)

    def span(self, start: int, stop: int) -> Tensor:
        """Elements start..stop-1 of the plan as a vector."""
        return self.view(start, (stop - start,))


def offload_lines(config: OffloadConfig) -> Iterator[str]:
    """What the log says of it. ValueError for what is not done on this device."""
    on_cpu = mindspore.get_context("device_target") == "CPU"
    share = f"{config.optimizer_offload_fraction:.0%} of the optimizer's states are"
    if config.offloads_optimizer and config.nvme_path is not None:
        yield f"{share} in files of {config.nvme_path}"
    elif config.offloads_optimizer:
        yield f"{share} in host memory" + (", as everything is on a CPU" if on_cpu else "")
    if config.cpu_offload_params and not on_cpu:
        raise ValueError(
            "--cpu-offload-params: a device keeps its part of the weights in its own memory; leave it out, or move the "
            "optimizer's states by --cpu-offload-optimizer"
        )
    if config.cpu_offload_params:
        yield "Weights are in host memory, as everything is on a CPU"


def update_on_host(sweep: Sweep, config: OptimizerConfig, step: Step) -> None:
    """Update what a sweep covers, of which the states - float32 values of 16-bit weights too - are the host's."""
    param = sweep.param if sweep.model_param is not None else _copy(sweep.param)
    model_param = None if sweep.model_param is None else _copy(sweep.model_param)
    with kernels.on_host():
        UPDATES[sweep.treatment.rule](
            sweep._replace(param=param, grad=_copy(sweep.grad), model_param=model_param), config, step
        )
    weights, updated = (sweep.param, param) if model_param is None else (sweep.model_param, model_param)
    if updated is not weights:
        in_place.assign(weights, updated)


def _copy(tensor: Tensor) -> Tensor:
    """A device's tensor on the host; on a CPU itself."""
    if mindspore.get_context("device_target") == "CPU":
        return tensor
    return Tensor.from_numpy(np.array(tensor.asnumpy()))
