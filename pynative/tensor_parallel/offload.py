"""Activations in host memory between a forward and its backward ("Capuchin", Peng et al., 2020).

Large tensors that operators within `offloading` save are copied to the host, and the copy comes back when the backward
asks for it. Copies are blocking, so that nothing depends on the order of streams (not run on hardware). A CPU's
activations are in host memory already; there `run_part` does not offload, which the log says.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial

import mindspore as ms
from mindspore import Parameter, Tensor

from parallel_core.config.recompute import RecomputeConfig


def device_has_own_memory() -> bool:
    """Whether the device has memory of its own, other than the host's: it is no CPU."""
    return ms.get_context("device_target") != "CPU"


class _OnHost:
    """A saved tensor that was copied to host memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = ms.get_context("device_target")
        self._host: Tensor | None = tensor.to("CPU")
        self._back: Tensor | None = None

    def back(self) -> Tensor:
        """The tensor on the device, copied back by the first call and kept for further ones."""
        if self._host is not None:
            self._back, self._host = self._host.to(self._device), None
        assert self._back is not None
        return self._back


def _pack(weights: frozenset[int], smallest: int, tensor: Tensor) -> Tensor | _OnHost:
    """The saved tensor, copied to the host unless it has fewer than `smallest` elements or begins where a parameter
    does. weights: addresses of the parameters' data, since the hook is not given the Parameter itself."""
    stays = tensor.size < smallest or tensor.data_ptr() in weights
    return tensor if stays else _OnHost(tensor)


def _unpack(saved: Tensor | _OnHost) -> Tensor:
    return saved.back() if isinstance(saved, _OnHost) else saved


def offloading(parameters: Iterable[Parameter], smallest: int) -> AbstractContextManager[None]:
    """Have the tensors that operators within the block save for the backward lie in host memory, if they have at least
    `smallest` elements. A tensor whose data begin at the address of one of `parameters` stays on the device."""
    weights = frozenset(parameter.data_ptr() for parameter in parameters)
    return ms.saved_tensors_hooks(partial(_pack, weights, smallest), _unpack)


def offload_notice(config: RecomputeConfig) -> str | None:
    """One line for the log if the configuration asks for offloading and the device is a CPU, so that nothing is moved;
    else None."""
    if config.offload_flag is None or device_has_own_memory():
        return None
    return f"{config.offload_flag}: nothing is moved, a CPU's activations are in host memory already"
