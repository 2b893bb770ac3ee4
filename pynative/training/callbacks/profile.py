"""A profile of some iterations, recorded by MindSpore's profiler.

It sees MindSpore's operators: on a CPU those of `--kernels ops`, while the default's work is in numpy and oneDNN.
The profiler is `ms.profiler` where it is used, and no import: it is loaded when a run wants it (`deferred_imports`).
"""

from pathlib import Path
from typing import Any

import mindspore as ms

from parallel_core.config.profiler import ProfilerConfig
from pynative import parallel_state
from pynative.log import log
from pynative.training.callbacks.base import Callback, TrainingState

LEVELS = {"level_none": "LevelNone", "level0": "Level0", "level1": "Level1", "level2": "Level2"}
COUNTERS = (
    "ArithmeticUtilization",
    "PipeUtilization",
    "Memory",
    "MemoryL0",
    "ResourceConflictRatio",
    "MemoryUB",
    "L2Cache",
    "AiCoreNone",
)
"""By the number of --profile-aicore-metrics; the last is -1."""


def _profiler(config: ProfilerConfig, directory: Path) -> Any:
    on_device = ms.get_context("device_target") == "Ascend"
    profiler = ms.profiler
    activities = [profiler.ProfilerActivity.NPU] if on_device else []
    activities += [profiler.ProfilerActivity.CPU] if config.profile_with_cpu or not on_device else []
    write = profiler.tensorboard_trace_handler(str(directory), analyse_flag=not config.profile_offline_analyse)
    return profiler.profile(
        activities=activities,
        start_profile=False,
        with_stack=config.profile_with_stack,
        profile_memory=config.profile_memory,
        data_process=config.profile_data_process,
        parallel_strategy=config.profile_parallel_strategy,
        hbm_ddr=config.profile_hbm_ddr,
        pcie=config.profile_pcie,
        record_shapes=config.profile_record_shapes,
        on_trace_ready=write,
        experimental_config=profiler._ExperimentalConfig(
            profiler_level=profiler.ProfilerLevel[LEVELS[config.profile_level]],
            aic_metrics=profiler.AicoreMetrics[COUNTERS[config.profile_aicore_metrics]],
            l2_cache=config.profile_l2_cache,
            data_simplification=config.profile_data_simplification,
        ),
    )


class ProfileCallback(Callback):
    """--profile: this rank's iterations from --profile-step-start up to --profile-step-end, which is not recorded."""

    reads_parameters = False

    def __init__(self, config: ProfilerConfig) -> None:
        self.config, self._running = config, False
        self.directory = Path(config.profile_save_path) / f"rank_{parallel_state.get_global_rank()}"

    def on_train_begin(self, state: TrainingState) -> None:
        self._switch(state.iteration)

    def on_step_end(self, state: TrainingState) -> None:
        self._switch(state.iteration)

    def on_train_end(self, state: TrainingState) -> None:
        self._stop()

    def _switch(self, iteration: int) -> None:
        """Between the iterations `iteration` - 1 and `iteration`, counted from 0."""
        if iteration == self.config.profile_step_end:
            self._stop()
        elif iteration == self.config.profile_step_start:
            self._profiler, self._running = _profiler(self.config, self.directory), True
            self._profiler.start()

    def _stop(self) -> None:
        if self._running:
            self._profiler.stop()
            self._running = False
            log(f"Profile of {self.directory.name} written to {self.directory}")


class DynamicProfileCallback(Callback):
    """--profile-dynamic-profiler-config-path: MindSpore's monitor reads `profiler_config.json` in that directory while
    training runs, and records the steps that it names."""

    reads_parameters = False

    def __init__(self, config: ProfilerConfig) -> None:
        self.config = config

    def on_train_begin(self, state: TrainingState) -> None:
        path = self.config.profile_dynamic_profiler_config_path
        self._monitor = ms.profiler.DynamicProfilerMonitor(cfg_path=path, output_path=self.config.profile_save_path)

    def on_step_end(self, state: TrainingState) -> None:
        self._monitor.step()

    def on_train_end(self, state: TrainingState) -> None:
        """Its shared memory goes by the hour in its name: what stays behind would keep the next run from reading."""
        self._monitor.on_train_end(None)


def profile_callbacks(config: ProfilerConfig) -> list[Callback]:
    """What --profile asks of this rank."""
    ranks = config.profile_ranks
    if not config.profile or (ranks is not None and parallel_state.get_global_rank() not in ranks):
        return []
    dynamic = config.profile_dynamic_profiler_config_path is not None
    return [DynamicProfileCallback(config) if dynamic else ProfileCallback(config)]
