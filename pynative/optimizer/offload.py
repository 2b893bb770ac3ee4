"""Optimizer states in host memory or in a file, weights in host memory, and updates where the states are.

"ZeRO-Offload" (Ren et al., 2021): the device has weights and gradients, the host states and float32 weights; a gradient
goes to the host, the updated weight comes back. "ZeRO-Infinity" (Rajbhandari et al., 2021): the states are in a file on
a fast disk, of which the host's memory holds what is in use.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from parallel_core.config.gradient import GradientConfig
from parallel_core.config.optimizer import OffloadConfig
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.distributed.flat_memory import Allocate
from pynative.memory import in_place
from pynative.optimizer.sweep import Sweep


class InFiles:
    """Allocator of zeros in files of a directory, which is made if it is missing, mapped into memory: called with
    (size, type) it gives an array [size]. The files have no name: they vanish at the latest with the process, however
    it ends.

    Raises ValueError when it is made for a directory that cannot be written to, and when it is called without enough
    room on the disk: all of it is taken at once, because a disk that is full later ends the process.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self(1, np.dtype(np.float32))
        except OSError as error:
            raise ValueError(f"--nvme-path {directory}: cannot be written to: {error}") from error

    def __call__(self, size: int, dtype: np.dtype[Any]) -> Array:
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
    """The function that allocates offloaded states, in host memory or in files; None: no state is offloaded. Raises
    ValueError if the directory for the files cannot be written to."""
    if not config.offloads_optimizer:
        return None
    return np.zeros if config.nvme_path is None else InFiles(config.nvme_path)


def offload_lines(config: OffloadConfig, gradient: GradientConfig) -> Iterator[str]:
    """The log's lines about offloaded states and weights; none if nothing is offloaded."""
    on_cpu = mindspore.get_context("device_target") == "CPU"
    share = f"{config.optimizer_offload_fraction:.0%} of the optimizer's states are"
    if config.offloads_optimizer and config.nvme_path is not None:
        yield f"{share} in files of {config.nvme_path}"
    elif config.offloads_optimizer:
        yield f"{share} in host memory" + (", as everything is on a CPU" if on_cpu else "")
    if gradient.cpu_offload_params:
        yield "This rank's part of the weights is in host memory" + (", as everything is on a CPU" if on_cpu else "")


@contextmanager
def where_states_are(sweep: Sweep, states_are_on_host: bool) -> Iterator[Sweep]:
    """Yield the sweep with gradient and weights at the place of the states (states_are_on_host: the host, else the
    device): copies, if the originals lie elsewhere. Operators within the block run at that place; after it copied
    weights are copied back, not if it ends by an error."""
    weights = sweep.param if sweep.model_param is None else sweep.model_param
    is_there = in_place.is_on_host(weights) is states_are_on_host
    updated = weights if is_there else _copy(weights)
    gradient = _copy(sweep.grad) if states_are_on_host else sweep.grad
    named = {"param": updated} if sweep.model_param is None else {"model_param": updated}
    with kernels.on_host() if states_are_on_host else nullcontext():
        yield sweep._replace(grad=gradient, **named)
    if updated is not weights:
        in_place.assign(weights, updated)


def _copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor in host memory, which an operator may take to the device; on a CPU the tensor itself."""
    if mindspore.get_context("device_target") == "CPU":
        return tensor
    return Tensor.from_numpy(np.array(tensor.asnumpy()))
