"""Record steps of the real Megatron-Core for `python -m mapping compare`: two lines in a training script of Megatron's.

    from record_megatron import MegatronRecorder                       # after the model and its optimizer are made
    MegatronRecorder(model, optimizer, "record-dir", first=1, last=2)

The optimizer's steps count from 1. Of each in `first` to `last` this keeps tokens, results of embedding, layers and
final norm, gradients (averaged, before clipping), the norm, learning rate, and weights after it, of the first also
those before, in the form that `parallel_core/compare/recorded.py` says. `compare record-dir OURS` then reads it.
Pipeline and data parallelism go with it; tensor and expert parallelism, the distributed optimizer on several replicas,
recomputed layers and a loss scale do not. It needs numpy, torch and this repository on PYTHONPATH, not MindSpore.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.compare.recorded import key, of_parameters, write_step
from parallel_core.compare.sample import of_activation

FUSED = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
"""Transformer Engine's name of a norm inside a linear -> the local layers' name."""


class MegatronRecorder:
    """Hooks on the modules of a model, and around the optimizer's `step`, that record steps.

    Args:
        model: Megatron's list of model chunks, wrapped or not, or a single one.
        optimizer: a MegatronOptimizer.
        folder: where `step_00000001/` ... are written, a file for each rank.
        first, last: steps of the optimizer, from 1, both recorded.

    Raises ValueError with tensor parallelism.
    """

    def __init__(self, model: Any, optimizer: Any, folder: str | Path, first: int = 1, last: int = 1) -> None:
        from megatron.core import parallel_state

        self.state, self.optimizer, self.folder = parallel_state, optimizer, Path(folder)
        self.first, self.last, self.step = first, last, 1
        if parallel_state.get_tensor_model_parallel_world_size() > 1:
            raise ValueError("MegatronRecorder: needs --tensor-model-parallel-size 1; ours may have any")
        self.chunks = [_unwrapped(chunk) for chunk in (model if isinstance(model, list) else [model])]
        self.arrays: dict[str, np.ndarray] = {}
        self.micro_batches = [0] * len(self.chunks)
        for number, chunk in enumerate(self.chunks):
            chunk.register_forward_pre_hook(self._begin(number), with_kwargs=True)
            for name, module in _observed(chunk).items():
                module.register_forward_hook(self._note(number, name))
        self._step, optimizer.step = optimizer.step, self._recorded_step

    @property
    def is_due(self) -> bool:
        """Whether the optimizer's step that comes next is recorded."""
        return self.first <= self.step <= self.last

    def _number(self, chunk: int) -> int:
        """The number, in the global batch, of the micro-batch that a chunk computes now."""
        replicas = self.state.get_data_parallel_world_size(), self.state.get_data_parallel_rank()
        return (self.micro_batches[chunk] - 1) * replicas[0] + replicas[1]

    def _begin(self, chunk: int) -> Any:
        def begin(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not module.training:
                return
            self.micro_batches[chunk] += 1
            if self.is_due and self.micro_batches[chunk] == 1 and self.step == self.first and chunk == 0:
                self.arrays |= of_parameters("before", self._weights())
            tokens = named.get("input_ids", inputs[0] if inputs else None)
            if self.is_due and tokens is not None:
                self.arrays[key("tokens", self._number(chunk))] = tokens.detach().cpu().numpy()

        return begin

    def _note(self, chunk: int, name: str) -> Any:
        def note(module: Any, inputs: tuple[Any, ...], result: Any) -> None:
            if not (self.is_due and module.training):
                return
            x = (result[0] if isinstance(result, tuple) else result).detach().float().cpu().numpy()
            words = self._number(chunk), f"{chunk:04d}.{len(self.arrays):06d}", name
            kept, positions = of_activation(x, np.arange(x.shape[0]), x.shape[0])
            self.arrays |= {key("activation", *words): kept, key("positions", *words): positions}

        return note

    def _parameters(self) -> dict[str, Any]:
        found = {}
        for chunk in self.chunks:
            for name, parameter in chunk.named_parameters():
                found[_global_name(chunk, name)] = parameter
        return found

    def _weights(self) -> dict[str, np.ndarray]:
        return {name: _array(parameter) for name, parameter in self._parameters().items()}

    def _recorded_step(self, *arguments: Any, **named: Any) -> Any:
        """Take the optimizer's step, and record gradients before it, weights and norm after it."""
        if self.is_due:
            gradients = {name: getattr(p, "main_grad", p.grad) for name, p in self._parameters().items()}
            self.arrays |= of_parameters("gradient", {n: _array(g) for n, g in gradients.items() if g is not None})
        lr = self.optimizer.param_groups[0]["lr"]
        done = self._step(*arguments, **named)
        if self.is_due:
            self.arrays |= of_parameters("after", self._weights())
            updated, norm, *_ = done
            figures = {"grad_norm": None if norm is None else float(norm), "lr": float(lr), "skipped": not updated}
            self._write(figures)
        self.arrays, self.micro_batches, self.step = {}, [0] * len(self.chunks), self.step + 1
        return done

    def _write(self, figures: dict[str, Any]) -> None:
        import torch

        rank = torch.distributed.get_rank()
        arrays = self.arrays
        if self.state.get_data_parallel_rank() > 0:  # the first replica records the weights for all
            arrays = {name: x for name, x in arrays.items() if name.startswith(("tokens", "activation", "positions"))}
        dtype = str(next(self.chunks[0].parameters()).dtype).removeprefix("torch.")
        write_step(self.folder, self.step, rank, arrays, figures if rank == 0 else None, dtype)


def _unwrapped(module: Any) -> Any:
    while hasattr(module, "module"):
        module = module.module
    return module


def _observed(chunk: Any) -> dict[str, Any]:
    """Global name -> module, of the modules whose results are recorded."""
    named = dict(chunk.named_modules())
    layers = {_global_name(chunk, n): m for n, m in named.items() if re.fullmatch(r"decoder\.layers\.\d+", n)}
    others = {n: named[n] for n in ("embedding", "decoder.final_layernorm") if n in named}
    return layers | others


def _global_name(chunk: Any, name: str) -> str:
    """A chunk's name of a module or parameter with the layer's number in the whole model and the local layers'
    spelling."""
    found = re.match(r"decoder\.layers\.(\d+)", name)
    if found:
        number = chunk.decoder.layers[int(found[1])].layer_number - 1
        name = f"decoder.layers.{number}{name[found.end() :]}"
    for fused, plain in FUSED.items():
        name = name.replace(fused, plain)
    return name


def _array(tensor: Any) -> np.ndarray:
    """A numpy copy of a tensor: clipping and the update change the tensor in place."""
    return np.array(tensor.detach().float().cpu().numpy(), copy=True)
