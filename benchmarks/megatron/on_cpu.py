"""Lets Megatron-Core run where there is no CUDA: `redirect()` before its import, `complete()` after it.

Megatron-Core names CUDA outright: in factories (`device="cuda"`), in names of types, in streams and random states.
Those calls get a CPU's answer here. No arithmetic is changed.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import torch

FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "arange", "randint", "empty_like", "zeros_like", "ones_like")
"""Functions of torch with an argument `device` to which Megatron-Core gives CUDA."""


def _names_cuda(device: Any) -> bool:
    return str(device).startswith("cuda") or (isinstance(device, int) and not isinstance(device, bool))


def _on_cpu(function: Callable) -> Callable:
    """The function, with the CPU for a device of CUDA and without pinned memory."""

    @functools.wraps(function)
    def redirected(*arguments: Any, **named: Any) -> Any:
        if named.get("device") is not None and _names_cuda(named["device"]):
            named["device"] = "cpu"
        named.pop("pin_memory", None)
        return function(*arguments, **named)

    return redirected


def redirect() -> None:
    """Replace each function of torch that asks for CUDA in a training step by one that answers for the CPU."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor_type = torch.Tensor.type

    def typed(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        """`Tensor.type`, with the names of CUDA's types, with which the optimizer compares."""
        found = tensor_type(self, *arguments, **named)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found

    torch.Tensor.type = typed
    for name in ("cuda", "record_stream", "pin_memory"):
        setattr(torch.Tensor, name, lambda self, *_, **__: self)
    torch.nn.Module.cuda = lambda self, *_, **__: self
    state = torch.zeros(16, dtype=torch.uint8)
    answers = {
        "current_device": "cpu",
        "current_stream": MagicMock(),
        "default_stream": MagicMock(),
        "Stream": MagicMock(),
        "Event": MagicMock(),
        "get_rng_state": state,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for name in ("set_device", "synchronize", "empty_cache", "set_rng_state", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.stream = lambda *_: contextlib.nullcontext()


def complete() -> None:
    """Redirect Megatron-Core's own copies of the functions of random states, after its import."""
    from megatron.core.tensor_parallel import random

    random._set_cuda_rng_state = lambda *_, **__: None
    random._get_cuda_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
