"""What the log and files say of experts: how many tokens they drop, and how many each receives."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.config import ModelConfig
from parallel_core.step_figures import TOKENS_CHOSEN
from pynative import parallel_state
from pynative.log import log
from pynative.training.callbacks.base import Callback, TrainingState
from pynative.training.callbacks.hot_experts import ColdHotExpertMonitor


def drop_rate(counts: np.ndarray, capacity_factor: float) -> float:
    """The share of choices beyond the capacity of their expert: sum of max(0, f_e - factor / E), with f_e = counts [E]
    over their sum."""
    return float(np.maximum(counts / counts.sum() - capacity_factor / len(counts), 0.0).sum())


class MoEDropRateCallback(Callback):
    """A line a layer and step from rank 0; choices of all ranks are counted, before any are dropped.

    Args:
        expert_num, num_layers, mtp_depth: the model's.
        capacity_factor: how many tokens an expert takes, as a multiple of an even share.
    """

    reads_parameters = False

    def __init__(self, expert_num: int, capacity_factor: float, num_layers: int, mtp_depth: int) -> None:
        self.expert_num, self.capacity_factor = expert_num, capacity_factor
        self.num_layers, self.mtp_depth = num_layers, mtp_depth

    @classmethod
    def of(cls, config: ModelConfig) -> "MoEDropRateCallback":
        """The configuration's."""
        moe = config.moe_config
        factor = moe.monitors.moe_drop_rate_capacity_factor or moe.moe_expert_capacity_factor
        assert moe.num_experts is not None and factor is not None, "a rule asks for both"
        return cls(moe.num_experts, factor, config.num_layers, _depths(config))

    def on_train_begin(self, state: TrainingState) -> None:
        config = state.config.model_config
        wanted = {
            "expert_num": config.moe_config.num_experts,
            "num_layers": config.num_layers,
            "mtp_depth": _depths(config),
        }
        wrong = {name: value for name, value in wanted.items() if getattr(self, name) != value}
        if wrong:
            given = ", ".join(f"{name}={getattr(self, name)}" for name in wrong)
            raise ValueError(f"MoEDropRateCallback({given}): the model has {wrong}; give these")

    def on_step_end(self, state: TrainingState) -> None:
        if parallel_state.get_global_rank() > 0:
            return
        for layer, counts in enumerate(state.result.figures[TOKENS_CHOSEN]):
            if counts.any():
                log(f"layer: {layer}, drop_rate: {drop_rate(counts, self.capacity_factor):.5f}")


class SummaryMonitor(Callback):
    """Writes `summary_dir`/export_<time>/tensor/layer-<l>_<step>.npy: the tokens [E] int64 that chose each expert of a
    layer (from 0) in a step, on all ranks. `pynative.moe.plot_token_distribution` draws them.

    Args:
        keep_default_action: MindSpore's other records; there are none.
        collect_freq: every how many steps, unless collect_tensor_freq says it.
        export_options: {"tensor_format": "npy"}.
    """

    reads_parameters = False

    def __init__(
        self,
        summary_dir: str | Path,
        keep_default_action: bool = False,
        collect_freq: int = 1,
        collect_tensor_freq: int | None = None,
        export_options: Mapping[str, Any] | None = None,
    ) -> None:
        if (export_options or {}).get("tensor_format", "npy") != "npy":
            raise ValueError(f"SummaryMonitor: export_options {export_options}: the format is npy")
        self.directory, self.interval = Path(summary_dir), collect_tensor_freq or collect_freq

    def on_train_begin(self, state: TrainingState) -> None:
        if parallel_state.get_global_rank() == 0:
            self.directory = self.directory / f"export_{time.strftime('%Y%m%d_%H%M%S')}" / "tensor"
            self.directory.mkdir(parents=True, exist_ok=True)

    def on_step_end(self, state: TrainingState) -> None:
        if parallel_state.get_global_rank() > 0 or state.iteration % self.interval:
            return
        for layer, counts in enumerate(state.result.figures.get(TOKENS_CHOSEN, ())):
            if counts.any():
                np.save(self.directory / f"layer-{layer}_{state.iteration}.npy", counts.astype(np.int64))


def _depths(config: ModelConfig) -> int:
    return config.multi_token_prediction.num_layers or 0


def expert_callbacks(config: ModelConfig, output: Path, given: Sequence[Callback]) -> list[Callback]:
    """Those that the configuration asks for and a script has not `given` itself."""
    monitors, found = config.moe_config.monitors, list[Callback]()
    if config.moe_config.num_experts is None:
        return found
    if monitors.moe_log_drop_rate and not _has(given, MoEDropRateCallback):
        found.append(MoEDropRateCallback.of(config))
    if monitors.save_token_distribution:
        directory = monitors.summary_dir or output / "token_distribution"
        found.append(SummaryMonitor(directory, collect_freq=monitors.summary_collect_freq))
    if config.moe_config.hot_expert_num and not _has(given, ColdHotExpertMonitor):
        found.append(ColdHotExpertMonitor(config.moe_config))
    return found


def _has(callbacks: Sequence[Callback], kind: type[Callback]) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)
