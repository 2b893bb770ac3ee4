"""Callbacks about experts: the share of dropped choices in the log, tokens per expert in files, hot experts in
checkpoints."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.config import ModelConfig
from parallel_core.config.moe import MoEConfig
from parallel_core.step_figures import TOKENS_BEYOND, TOKENS_CHOSEN, TOKENS_ROUTED
from pynative import parallel_state
from pynative.moe.hot_experts import HotExpertLayers
from pynative.startup.log import log
from pynative.training.callbacks.base import Callback, RunCallback, TrainingState


class MoEDropRateCallback(RunCallback):
    """Logs, on rank 0, a line for each step and each layer that has experts (by its number from 0): the share of the
    layer's choices of experts that were dropped, counted in every micro-batch of all ranks.

    Args:
        expert_num, num_layers, mtp_depth: the values of the model's configuration.
        capacity_factor: --moe-drop-rate-capacity-factor if that flag is given, else the capacity factor of the model's
            configuration. Where the flag gives another factor than the model's, the line also has the share that it
            would drop.

    Raises ValueError before the first step if an argument is not the configuration's.
    """

    def __init__(self, expert_num: int, capacity_factor: float, num_layers: int, mtp_depth: int) -> None:
        self.expert_num, self.capacity_factor = expert_num, capacity_factor
        self.num_layers, self.mtp_depth = num_layers, mtp_depth

    @classmethod
    def of(cls, config: ModelConfig) -> "MoEDropRateCallback":
        """The callback, with arguments taken from the configuration."""
        return cls(**_described(config))

    def on_train_begin(self, state: TrainingState) -> None:
        described = _described(state.config.model_config)
        wrong = {name: value for name, value in described.items() if getattr(self, name) != value}
        if wrong:
            given = ", ".join(f"{name}={getattr(self, name)}" for name in wrong)
            other = f", or --moe-drop-rate-capacity-factor {self.capacity_factor}" if "capacity_factor" in wrong else ""
            raise ValueError(f"MoEDropRateCallback({given}): the model has {wrong}; give these{other}")

    def on_step_end(self, state: TrainingState) -> None:
        if parallel_state.get_global_rank() > 0:
            return
        figures = state.result.figures
        chosen, routed = (figures[name].sum(axis=1) for name in (TOKENS_CHOSEN, TOKENS_ROUTED))
        for layer in np.flatnonzero(chosen):
            line = f"layer: {layer}, drop_rate: {(chosen - routed)[layer] / chosen[layer]:.5f}"
            if TOKENS_BEYOND in figures:
                share = figures[TOKENS_BEYOND][layer] / chosen[layer]
                line += f", with capacity factor {self.capacity_factor:g} it would be {share:.5f}"
            log(line)


def _described(config: ModelConfig) -> dict[str, Any]:
    """The arguments of MoEDropRateCallback that describe the configuration's model."""
    moe = config.moe_config
    return {
        "expert_num": moe.num_experts,
        "capacity_factor": moe.monitors.moe_drop_rate_capacity_factor or moe.moe_expert_capacity_factor,
        "num_layers": config.num_layers,
        "mtp_depth": config.multi_token_prediction.num_layers or 0,
    }


class SummaryMonitor(RunCallback):
    """Writes, on rank 0, `summary_dir`/export_<time>/tensor/layer-<l>_<step>.npy for each layer l (from 0) that has
    experts: the number of tokens of all ranks, int64 [E], that chose each expert in step <step>; E counts experts that
    compute nothing, too. `pynative.moe.plot_token_distribution` draws them.

    Args:
        keep_default_action: MindSpore's other records; ignored, there are none.
        collect_freq: files are written at steps that are multiples of it; collect_tensor_freq, if given, is taken in
            its place. ValueError if the one taken is below 1.
        export_options: None or {"tensor_format": "npy"}; ValueError for another format, other keys are ignored.
    """

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
        self.directory = Path(summary_dir)
        self.interval = collect_freq if collect_tensor_freq is None else collect_tensor_freq
        if self.interval < 1:
            raise ValueError(f"SummaryMonitor: every {self.interval} steps: must be at least 1; change it")

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


def expert_callbacks(config: ModelConfig, output: Path, given: Sequence[Callback]) -> list[Callback]:
    """The callbacks about experts that the configuration asks for, without those whose class one of `given`, a script's
    own callbacks, has. output: the folder of the run's files."""
    monitors, found = config.moe_config.monitors, list[Callback]()
    if config.moe_config.num_experts is None:
        return found
    if monitors.moe_log_drop_rate and not _has(given, MoEDropRateCallback):
        found.append(MoEDropRateCallback.of(config))
    if monitors.save_token_distribution and not _has(given, SummaryMonitor):
        directory = monitors.summary_dir or output / "token_distribution"
        found.append(SummaryMonitor(directory, collect_freq=monitors.summary_collect_freq))
    if config.moe_config.hot_expert_num and not _has(given, ColdHotExpertMonitor):
        found.append(ColdHotExpertMonitor(config.moe_config))
    return found


def _has(callbacks: Sequence[Callback], kind: type[Callback]) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


class ColdHotExpertMonitor(RunCallback):
    """Has each layer's hot experts chosen anew before a checkpoint, which keeps the choice: those that the last step
    with an update sent most tokens to.

    At steps that are powers of two up to hot_expert_update_step, or its multiples, the training step itself chooses, if
    it makes its update. It does not matter whether this stands before or after the callback that saves.

    Args:
        save_checkpoint_steps: hot experts are chosen anew after steps that are its multiples, too; None or below 1: not
            so.
        moe_config, hidden_size, ffn_hidden_size, expert_parallel, model_parallel: None, or the configuration's values
            (the last two: the expert- and the tensor-parallel size); ValueError before the first step if they differ
            from it (moe_config: if its hot_expert_num does).
    """

    def __init__(
        self,
        moe_config: MoEConfig | None = None,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        expert_parallel: int | None = None,
        model_parallel: int | None = None,
        save_checkpoint_steps: int | None = None,
    ) -> None:
        self._given = {
            "hot_expert_num": None if moe_config is None else moe_config.hot_expert_num,
            "hidden_size": hidden_size,
            "ffn_hidden_size": ffn_hidden_size,
            "expert_parallel": expert_parallel,
            "model_parallel": model_parallel,
        }
        self._save_interval = save_checkpoint_steps or 0
        self._layers: HotExpertLayers | None = None
        self._kept: dict[str, list[int]] = {}

    def on_train_begin(self, state: TrainingState) -> None:
        model, parallel = state.config.model_config, state.config.parallel_config
        described = {
            "hot_expert_num": model.moe_config.hot_expert_num,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "expert_parallel": parallel.expert_model_parallel_size,
            "model_parallel": parallel.tensor_model_parallel_size,
        }
        wrong = {name: value for name, value in described.items() if self._given[name] not in (None, value)}
        if wrong:
            given = ", ".join(f"{name}={self._given[name]}" for name in wrong)
            raise ValueError(f"ColdHotExpertMonitor({given}): the model has {wrong}; give these, or leave them out")
        self._layers = state.step_cell.hot_experts
        self._take_kept()

    def on_step_end(self, state: TrainingState) -> None:
        if self._save_interval > 0 and state.iteration % self._save_interval == 0:
            state.step_cell.hot_experts.choose()

    def before_save(self, state: TrainingState) -> None:
        state.step_cell.hot_experts.choose()

    def state_dict(self) -> dict[str, Any]:
        chosen = {} if self._layers is None else self._layers.chosen
        return {"hot": {str(number): list(hot) for number, hot in chosen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state["hot"]
        self._take_kept()

    def _take_kept(self) -> None:
        """Have the layers, if they are known, take up the choice of the checkpoint."""
        if self._layers is not None:
            self._layers.take({int(number): tuple(hot) for number, hot in self._kept.items()})
