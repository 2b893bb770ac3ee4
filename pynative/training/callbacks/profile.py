"""Profiles of some iterations by MindSpore's profiler, and the list of callbacks of --profile and --trace.

The profiler sees MindSpore's operators; on a CPU `--kernels ops` has them do the layers' work.
"""

from pathlib import Path
from typing import Any

import mindspore as ms

from parallel_core.config import AllConfig, TrainingConfig
from parallel_core.config.profiler import ProfilerConfig
from pynative import parallel_state
from pynative.startup.log import log, warn
from pynative.training.callbacks.base import Callback, RunCallback, TrainingState
from pynative.training.callbacks.trace import TraceCallback

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
"""Names of MindSpore's AI Core counters, indexed by --profile-aicore-metrics; -1 is the last."""


class Recording:
    """A profile of this rank; it logs where it was written, or warns that it is empty."""

    def __init__(self, config: ProfilerConfig) -> None:
        self._config = config
        self._profiler: Any = None
        self.directory = Path(config.profile_save_path) / f"rank_{parallel_state.get_global_rank()}"
        self.has_begun = False

    def start(self) -> None:
        """Start to record."""
        self._before, self.has_begun = self._files(), True
        self._profiler = self._new_profiler()
        self._profiler.start()

    def stop(self) -> None:
        """Stop and write the profile; nothing if it is not recording."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
            if self._files() > self._before:
                log(f"Profile of {self.directory.name} written to {self.directory}")
            else:
                warn(f"No profile of {self.directory.name}: no operator of MindSpore ran; on a CPU add --kernels ops")

    def _new_profiler(self) -> Any:
        config = self._config
        on_device = ms.get_context("device_target") == "Ascend"
        profiler = ms.profiler
        activities = [profiler.ProfilerActivity.NPU] if on_device else []
        activities += [profiler.ProfilerActivity.CPU] if config.profile_with_cpu or not on_device else []
        write = profiler.tensorboard_trace_handler(str(self.directory), analyse_flag=not config.profile_offline_analyse)
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

    def _files(self) -> set[Path]:
        """The files of profiles in the directory, without the profiler's own logs."""
        return {path for path in self.directory.rglob("*") if path.is_file() and path.parent.name != "logs"}


class ProfileCallback(RunCallback):
    """--profile: records this rank's iterations, counted from 0, from --profile-step-start up to --profile-step-end,
    which is not recorded; nothing in a run that goes on behind --profile-step-start."""

    def __init__(self, config: ProfilerConfig) -> None:
        self.config, self._recording = config, Recording(config)

    def on_train_begin(self, state: TrainingState) -> None:
        self._first = state.iteration
        self.on_step_end(state)

    def on_step_end(self, state: TrainingState) -> None:
        """Stop the profile if the next iteration, number `state.iteration` from 0, is --profile-step-end; start it if
        that is --profile-step-start and the run has such an iteration."""
        if state.iteration == self.config.profile_step_end:
            self._recording.stop()
        elif state.iteration == self.config.profile_step_start < state.config.training_config.training_iters:
            self._recording.start()

    def on_train_end(self, state: TrainingState) -> None:
        self._recording.stop()
        if not self._recording.has_begun:
            wanted = f"from --profile-step-start {self.config.profile_step_start} to {self.config.profile_step_end}"
            warn(f"No profile: it was to go {wanted}, and training went from {self._first} to {state.iteration}")


class DynamicProfileCallback(RunCallback):
    """--profile with --profile-dynamic-profiler-config-path: MindSpore's monitor reads `profiler_config.json` in that
    directory while training runs, and records the steps that this file names."""

    def __init__(self, config: ProfilerConfig) -> None:
        self.config = config

    def on_train_begin(self, state: TrainingState) -> None:
        self._monitor = _monitor(self.config)

    def on_step_end(self, state: TrainingState) -> None:
        self._monitor.step()

    def on_train_end(self, state: TrainingState) -> None:
        """End MindSpore's monitor, which releases its shared memory."""
        self._monitor.on_train_end(None)


class PynativeProfiler:
    """A profile for a script's own loop, under MindFormers' name: with --profile it records, on --profile-ranks (by
    default all), the steps from --profile-step-start to --profile-step-end, both included, by the numbers that the loop
    gives them, or, if --profile-dynamic-profiler-config-path is given, those that this directory's file names.

    Args:
        training_config: the training section of the configuration.
    """

    def __init__(self, training_config: TrainingConfig) -> None:
        self._config = config = training_config.profiler
        self._recording, self._is_wanted = Recording(config), _is_wanted(config)
        self._monitor = _monitor(config) if self._is_wanted and config.is_dynamic else None

    def step_begin(self, current_step: int) -> None:
        """Start the profile if step `current_step`, which begins, is the first to be recorded; nothing where a file
        names the steps, or where this rank is not profiled."""
        if self._is_wanted and self._monitor is None and current_step == self._config.profile_step_start:
            self._recording.start()

    def step_end(self, current_step: int) -> None:
        """Stop the profile if step `current_step`, which is over, is the last to be recorded; where a file names the
        steps, have MindSpore's monitor count the step."""
        if self._monitor is not None:
            self._monitor.step()
        elif current_step == self._config.profile_step_end:
            self._recording.stop()


def _monitor(config: ProfilerConfig) -> Any:
    path = config.profile_dynamic_profiler_config_path
    return ms.profiler.DynamicProfilerMonitor(cfg_path=path, output_path=config.profile_save_path)


def profile_callbacks(config: AllConfig, output: Path) -> list[Callback]:
    """The callbacks of --profile and --trace on this rank, in a list. On a CPU without --kernels ops --profile makes no
    profile; without --trace it then records a trace, in --profile-save-path. output: the folder for the trace of
    --trace."""
    profiler, parallel = config.training_config.profiler, config.parallel_config
    found: list[Callback] = []
    by_mindspore = parallel.kernels == "ops" or not parallel.is_on_cpu
    if (profiler.profile and not by_mindspore) or profiler.trace:
        folder = output if profiler.trace else Path(profiler.profile_save_path)
        start, end = profiler.profile_step_start, profiler.profile_step_end
        found.append(TraceCallback(folder, start, end, profiler.profile_ranks))
    if by_mindspore and _is_wanted(profiler):
        found.append(DynamicProfileCallback(profiler) if profiler.is_dynamic else ProfileCallback(profiler))
    return found


def _is_wanted(config: ProfilerConfig) -> bool:
    ranks = config.profile_ranks
    return config.profile and (ranks is None or parallel_state.get_global_rank() in ranks)
