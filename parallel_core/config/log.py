"""Options of a run's log, and of the services that it is written to."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding


class WriterPlan(NamedTuple):
    """A logging back end that a run writes to, such as TensorBoard."""

    package: str
    """The package that it needs: its name for import and for installation."""
    flag: str
    """The flag that asks for it, with its value, for messages."""
    options: dict[str, Any]
    """Arguments with which the back end is opened, by name."""


@dataclass(kw_only=True)
class LogConfig(Config):
    """Options of the log, of curves and of timers."""

    tensorboard_dir: str | None = option("--tensorboard-dir", None)
    """Folder of TensorBoard's files, which the last rank writes with Megatron's tags; none are written without it."""
    tensorboard_log_interval: int = option("--tensorboard-log-interval", 1, at_least=1)
    """Iterations from one point of the curves to the next."""
    tensorboard_queue_size: int = option("--tensorboard-queue-size", 1000, at_least=1)
    """Number of points that wait in memory before TensorBoard's file must take them."""
    log_timers_to_tensorboard: bool = option("--log-timers-to-tensorboard", False)
    """Write the time of an iteration and the timers as curves, too."""
    log_loss_scale_to_tensorboard: bool = option("--no-log-loss-scale-to-tensorboard", True)
    """Write the loss scale as a curve."""
    log_validation_ppl_to_tensorboard: bool = option("--log-validation-ppl-to-tensorboard", False)
    """Write the perplexity of evaluations as a curve."""
    log_memory_to_tensorboard: bool = option("--log-memory-to-tensorboard", False)
    """Write the memory of the last rank's process, in use and at its peak, as curves."""
    log_world_size_to_tensorboard: bool = option("--log-world-size-to-tensorboard", False)
    """Write the number of ranks as a curve."""
    log_throughput: bool = option("--log-throughput", False)
    """Write TFLOP/s as a curve; the log has them in any case."""
    peak_tflops: float | None = option("--peak-tflops", None, above=0)
    """Peak of one device in TFLOP/s in the type that layers compute in; the MFU is relative to it. If not given it is
    measured on a CPU when training begins; on an Ascend there is no MFU then."""
    plan_device: str | None = option("--plan-device", None)
    """Kind of device that the run is planned on, by name or a file of `plan --calibrate`: the log has the plan's time
    and memory beside the second step's, the MFU is a part of its peak, and pipeline schedules that are made by times
    (zb-1p, zb-2p, zb-v, v-half, v-min) take the plan's. If not given, rough figures of a CPU, or an Ascend 910B, and
    equal times."""
    log_memory_interval: int | None = option("--log-memory-interval", None, at_least=1)
    """Iterations from one line with every rank's memory to the next."""
    log_progress: bool = option("--log-progress", False)
    """Add a line to progress.txt in the directory of --save for every start and every checkpoint."""
    timing_log_level: int = option("--timing-log-level", 0, choices=(0, 1, 2))
    """Timers in the log: 0, none; 1, parts of a step; 2, also every forward, backward and receive."""
    timing_log_option: str = option("--timing-log-option", "minmax", choices=("max", "minmax", "all"))
    """max: the slowest rank's time of each timer; minmax: the shortest and the longest; all: every rank's."""
    barrier_with_L1_time: bool = option("--no-barrier-with-level-1-timing", True)
    """Wait for all ranks before timers of level 1 begin."""
    wandb_project: str | None = option("--wandb-project", None)
    """Project at Weights & Biases that the last rank writes to; none if not given."""
    wandb_exp_name: str | None = option("--wandb-exp-name", None)
    """Name of the run at Weights & Biases."""
    wandb_save_dir: str | None = option("--wandb-save-dir", None)
    """Directory of Weights & Biases' files; `wandb` in that of --save if not given."""
    wandb_entity: str | None = option("--wandb-entity", None)
    """User or team at Weights & Biases that owns the project."""
    mlflow_experiment: str | None = option("--mlflow-experiment", None)
    """Experiment of MLflow that the last rank writes to, on the server of MLFLOW_TRACKING_URI; none if not given."""
    swanlab_project: str | None = option("--swanlab-project", None)
    """Project of SwanLab that the last rank writes to; none if not given."""

    def rules(self) -> Iterable[Finding]:
        if self.wandb_project and not self.wandb_exp_name:
            yield Finding("--wandb-project", self.wandb_project, "needs a name of the run", "add --wandb-exp-name")

    def writers(self, output: str) -> list[WriterPlan]:
        """The back ends that the options ask to write curves to. output: the directory of the run's files, in which
        SwanLab's are and, without --wandb-save-dir, those of Weights & Biases."""
        plans = []
        if self.tensorboard_dir:
            options = {"log_dir": self.tensorboard_dir, "queue_size": self.tensorboard_queue_size}
            plans.append(WriterPlan("tensorboard", f"--tensorboard-dir {self.tensorboard_dir}", options))
        if self.wandb_project:
            folder = self.wandb_save_dir or f"{output}/wandb"
            options = {"project": self.wandb_project, "name": self.wandb_exp_name, "dir": folder}
            options |= {"entity": self.wandb_entity} if self.wandb_entity else {}
            plans.append(WriterPlan("wandb", f"--wandb-project {self.wandb_project}", options))
        if self.mlflow_experiment:
            options = {"experiment": self.mlflow_experiment}
            plans.append(WriterPlan("mlflow", f"--mlflow-experiment {self.mlflow_experiment}", options))
        if self.swanlab_project:
            options = {"project": self.swanlab_project, "logdir": f"{output}/swanlab"}
            plans.append(WriterPlan("swanlab", f"--swanlab-project {self.swanlab_project}", options))
        return plans
