"""Activations that lie in host memory between a forward pass and its backward ("Capuchin", Peng et al., 2020).

What operators save inside is copied to the host and let go on the device; the copy comes back when the backward asks
for it. Copies are blocking, so that nothing depends on the order of streams (not run on hardware). A CPU's activations
are in host memory already: there nothing is done, which the log says.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial

import mindspore as ms
from mindspore import Parameter, Tensor

from parallel_core.config.recompute import RecomputeConfig


def device_has_own_memory() -> bool:
    """Whether what a device computes with does not lie in host memory."""
    return ms.get_context("device_target") != "CPU"


class _OnHost:
    """A saved tensor that was copied to host memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = ms.get_context("device_target")
        self._host: Tensor | None = tensor.to("CPU")
        self._back: Tensor | None = None

    def back(self) -> Tensor:
        """The tensor on the device; an operator may ask several times."""
        if self._host is not None:
            self._back, self._host = self._host.to(self._device), None
        assert self._back is not None
        return self._back


def _pack(weights: frozenset[int], smallest: int, tensor: Tensor) -> Tensor | _OnHost:
    """The hook is not given the parameter itself where an operator saves one: its address tells."""
    stays = tensor.size < smallest or tensor.data_ptr() in weights
    return tensor if stays else _OnHost(tensor)


def _unpack(saved: Tensor | _OnHost) -> Tensor:
    return saved.back() if isinstance(saved, _OnHost) else saved


def offloading(parameters: Iterable[Parameter], smallest: int) -> AbstractContextManager[None]:
    """Within the block operators keep in host memory what they save, of tensors of at least `smallest` elements;
    parameters stay."""
    weights = frozenset(parameter.data_ptr() for parameter in parameters)
    return ms.saved_tensors_hooks(partial(_pack, weights, smallest), _unpack)


def offload_notice(config: RecomputeConfig) -> str | None:
    """One line where activations in host memory are asked for and are there in any case."""
    if config.offload_flag is None or device_has_own_memory():
        return None
    return f"{config.offload_flag}: nothing is moved, a CPU's activations are in host memory already"
