"""The log's line for an iteration, and the figures in it."""

import math
import time
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from parallel_core.planner import Plan
from parallel_core.step_figures import expert_load, logged, logged_by_layer
from pynative import parallel_state
from pynative.optimizer.statistics import ModelStatistics
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.callbacks.memory import is_on_cpu, peak_memory_mb

_SIZE, _TRIES = 768, 3


def peak_tflops(plan: Plan) -> float | None:
    """The peak TFLOP/s of a device, by which MFU is computed: as --peak-tflops says, or of the device of --plan-device,
    or on a CPU that of numpy's float32 product, measured on this rank once a process; None if unknown. Rank 0 logs
    it, unless it is unknown."""
    asked = plan.config.training_config.log
    named = plan.peak / 1e12 if asked.plan_device else None
    found = asked.peak_tflops or named or (_measured() if is_on_cpu() else None)
    if found and parallel_state.get_global_rank() == 0:
        origin = "as --peak-tflops says" if asked.peak_tflops else "as --plan-device says" if named else "measured"
        log(f"MFU is a part of {found:.4g} TFLOP/s, {origin}")
    return found


@cache
def _measured() -> float:
    """TFLOP/s of numpy's float32 product, measured once a process: it takes as long as a step of a small model."""
    a = np.ones((_SIZE, _SIZE), np.float32)
    seconds = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2e-12 * _SIZE**3 / min(seconds)


_RECENT = 20  # iterations whose mean time gives the estimate of the time left


_ASKED_FOR = {"decoupled_lr": "Decoupled_learning_rate", "params_norm": "Params_norm", "num_zeros": "Num_zeros"}
"""The name in the line of each figure that only a flag brings, by its key in the metrics."""


class LogCallback(RunCallback):
    """Fills `state.metrics` after every step, and logs a line of it on every rank at iteration 1, at --train-iters, and
    at multiples of `interval`."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._skipped = self._nan = 0
        self._asked_for: dict[str, float] = {}

    def on_train_begin(self, state: TrainingState) -> None:
        self._on_cpu = is_on_cpu()
        untrained = {id(kept) for kept in state.step_cell.expert_biases.untrained}
        frozen = [p for p in state.model.get_parameters() if not p.requires_grad and id(p) not in untrained]
        self._statistics = ModelStatistics(state.step_cell.buffers, frozen)
        self._peak = peak_tflops(state.plan)
        self._flops = state.plan.flops / state.plan.samples / parallel_state.get_world_group().size

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        if state.config.training_config.log_num_zeros_in_grad:
            self._asked_for["num_zeros"] = self._statistics.zero_gradients()

    def on_step_end(self, state: TrainingState) -> None:
        if state.config.training_config.log_params_norm:
            self._asked_for["params_norm"] = self._statistics.parameter_norm()
        self._recent.append(state.step_seconds)
        self._skipped += state.result.skipped
        self._nan += not math.isfinite(state.result.loss)
        state.metrics = self._figures(state)
        total = state.config.training_config.training_iters
        model, reported = state.config.model_config, state.result.figures
        losses = logged(model, reported)
        by_layer = logged_by_layer(model, reported) if model.moe_config.monitors.moe_per_layer_logging else {}
        state.metrics |= losses | by_layer
        if load := expert_load(reported):
            state.metrics["expert_load"] = load
        if state.iteration % self.interval == 0 or state.iteration in (1, total):
            log(_line(state.metrics, self._skipped, self._nan, losses))
            for name, value in by_layer.items():
                log(f"Step: {state.iteration}, {name}: {value:.6e}")
            self._skipped = self._nan = 0

    def _figures(self, state: TrainingState) -> dict[str, Any]:
        result, config = state.result, state.config
        tokens = result.samples * config.model_config.seq_length / state.step_seconds
        tflops = self._flops * result.samples / state.step_seconds / 1e12
        left = config.training_config.training_iters - state.iteration
        return {
            "epoch": state.consumed_samples // state.samples_per_epoch if state.samples_per_epoch else 0,
            "step": state.iteration,
            "loss": result.loss,
            "finite_grads": result.is_finite,
            "skipped": result.skipped,
            "loss_scale": result.loss_scale,
            "learning_rate": result.learning_rate,
            "weight_decay": result.weight_decay,
            "grad_norm": result.gradient_norm,
            "consumed_samples": state.consumed_samples,
            "tokens_per_second": tokens,
            "tokens_per_second_per_device": tokens / config.parallel_config.world_size,
            "tflops": tflops,
            **({} if self._peak is None else {"mfu": tflops / self._peak}),
            "memory_mb": peak_memory_mb(self._on_cpu),
            "eta_seconds": left * sum(self._recent) / len(self._recent),
            "milliseconds": state.step_seconds * 1e3,
            **({} if config.optimizer_config.decoupled_lr is None else {"decoupled_lr": result.decoupled_lr}),
            **self._asked_for,
        }


def _line(metrics: dict[str, Any], skipped: int, nan: int, losses: dict[str, float]) -> str:
    eta = time.strftime("%H:%M:%S", time.gmtime(metrics["eta_seconds"]))
    days = f"{int(metrics['eta_seconds'] // 86400)}d " if metrics["eta_seconds"] >= 86400 else ""
    asked_for = "".join(f"{name}: {metrics[key]:g}, " for key, name in _ASKED_FOR.items() if key in metrics)
    asked_for += "".join(f"{name}: {value:.6f}, " for name, value in losses.items())
    mfu = f"MFU: {metrics['mfu']:.2%}, " if "mfu" in metrics else ""
    return (
        f"Epoch: {metrics['epoch']}, Step: {metrics['step']}, Loss: {metrics['loss']:.16f}, "
        f"Finite_grads: {metrics['finite_grads']}, Loss_scale: {metrics['loss_scale']}, "
        f"Learning_rate: {metrics['learning_rate']:.16f}, Grad_norm: {metrics['grad_norm']:.6f}, {asked_for}"
        f"Number of skipped iterations: {skipped}, Number of nan iterations: {nan}, "
        f"Samples: {metrics['consumed_samples']}, Tokens/s: {metrics['tokens_per_second']:.1f}, "
        f"Tokens/s/device: {metrics['tokens_per_second_per_device']:.1f}, TFLOP/s: {metrics['tflops']:.4f}, {mfu}"
        f"Memory: {metrics['memory_mb']:.0f} MB, ETA: {days}{eta}, Time: {metrics['milliseconds']:.2f} ms"
    )
