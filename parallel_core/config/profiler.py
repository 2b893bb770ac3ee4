"""Options of MindSpore's profiler, of traces and of records."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding


@dataclass(kw_only=True)
class ProfilerConfig(Config):
    """Options of the profile, trace or record of a few iterations."""

    profile: bool = option("--profile", False)
    """Record a profile, by MindSpore's profiler or on a CPU as a trace."""
    trace: bool = option("--trace", False)
    """Write `trace.json` in the directory of --save: what every rank does in the iterations that --profile-step-start
    and --profile-step-end name, for Chrome and Perfetto. On a CPU --profile writes one where --profile-save-path says.
    """
    record: bool = option("--record", False)
    """Write `record` in the directory of --save: weights, data, activations, gradients and updates of the iterations
    that --record-step-start and --record-step-end name, for `compare`."""
    record_step_start: int = option("--record-step-start", 0, at_least=0)
    """First iteration that is recorded, counted from 0."""
    record_step_end: int = option("--record-step-end", 1, at_least=1)
    """First iteration that is no longer recorded."""
    profile_save_path: str = option("--profile-save-path", "./profile_dir")
    """Folder of the profile."""
    profile_step_start: int = option("--profile-step-start", 1, at_least=0)
    """First iteration that is profiled, counted from 0."""
    profile_step_end: int = option("--profile-step-end", 5, at_least=0)
    """First iteration that is no longer profiled."""
    profile_level: str = option("--profile-level", "level0", choices=("level_none", "level0", "level1", "level2"))
    """Level of detail of MindSpore's profiler, from none to the most."""
    profile_with_stack: bool = option("--profile-with-stack", False)
    """Record the Python stack of each operator."""
    profile_with_cpu: bool = option("--profile-with-cpu", False)
    """Record the host's work, beside the device's."""
    profile_record_shapes: bool = option("--profile-record-shapes", False)
    """Record shapes of operators' inputs."""
    profile_ranks: list[int] | None = option("--profile-ranks", None)
    """Ranks that are profiled; none: all."""
    profile_memory: bool = option("--profile-with-memory", False)
    """Record the memory of operators."""
    profile_framework: str = option("--profile-framework", "all", choices=("all", "time"))
    """Record all of the framework's work on the host, or its times alone."""
    profile_communication: bool = option("--profile-communication", False)
    """Record communication operators."""
    profile_op_time: bool = option("--no-profile-op-time", True)
    """Record the time of each operator."""
    profile_parallel_strategy: bool = option("--profile-parallel-strategy", False)
    """Have MindSpore's profiler add the parallel strategy (how operators are split over devices) to its data."""
    profile_aicore_metrics: int = option("--profile-aicore-metrics", 0, at_least=-1, at_most=6)
    """Group of the device's core counters that is recorded; -1: none."""
    profile_l2_cache: bool = option("--profile-l2-cache", False)
    """Record hits of the device's L2 cache."""
    profile_hbm_ddr: bool = option("--profile-hbm-ddr", False)
    """Record bandwidth of the device's memory (HBM and DDR)."""
    profile_pcie: bool = option("--profile-pcie", False)
    """Record traffic over PCIe."""
    profile_data_process: bool = option("--profile-data-process", False)
    """Record the time of loading and preparing data, on the host."""
    profile_data_simplification: bool = option("--profile-data-simplification", False)
    """Remove raw data once it is analysed."""
    profile_offline_analyse: bool = option("--profile-offline-analyse", False)
    """Write the profile's raw data alone, and leave their analysis for later."""
    profile_dynamic_profiler_config_path: str | None = option("--profile-dynamic-profiler-config-path", None)
    """Directory with a profiler_config.json that says, while training runs, which steps are profiled."""

    @property
    def is_dynamic(self) -> bool:
        """Whether --profile-dynamic-profiler-config-path is given: the directory of a file that tells MindSpore's
        profiler, while training runs, which iterations to profile."""
        return self.profile_dynamic_profiler_config_path is not None

    def rules(self) -> Iterator[Finding]:
        if (self.profile or self.trace) and self.profile_step_end <= self.profile_step_start:
            rule = f"must come after --profile-step-start {self.profile_step_start}"
            yield self.breaks("profile_step_end", rule, "raise it")
        if self.record and self.record_step_end <= self.record_step_start:
            rule = f"must come after --record-step-start {self.record_step_start}"
            yield self.breaks("record_step_end", rule, "raise it")
