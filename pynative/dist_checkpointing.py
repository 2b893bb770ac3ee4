"""Checkpoints by the calls of MindSpeed-Core-MS, for scripts with a loop of their own.

The files are of the project's format (`pynative.checkpointing`): one directory for all ranks, readable at any layout.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspore import nn

from parallel_core.checkpoint.writer import FileNames
from parallel_core.config import AllConfig, ModelConfig
from parallel_core.config.checkpoint import starts_a_name
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from pynative import checkpointing, parallel_state
from pynative.checkpointing.state import get_checkpoint_name, get_last_checkpoint, new_run_id
from pynative.optimizer.flat_optimizer import FlatOptimizer

__all__ = ["get_checkpoint_name", "get_last_checkpoint", "load_checkpoint", "save_checkpoint"]


_THIS_PROCESS = new_run_id()
"""The run id of all checkpoints that this process writes: `keep_checkpoint_max` counts and removes those with this id
alone."""


@dataclass
class _Run:
    """The `RunState` that saving and loading take, made of a script's configuration, model, optimizer and scheduler."""

    config: AllConfig
    model: nn.CellList
    optimizer: FlatOptimizer | None
    scheduler: OptimizerParamScheduler | None
    iteration: int = 0
    callbacks: tuple[Any, ...] = ()
    callback_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: _THIS_PROCESS)
    resumed_from: Path | None = None

    @property
    def step_cell(self) -> "_Run":
        return self

    @property
    def consumed_samples(self) -> int:
        """Samples that `iteration` steps took, at a global batch each."""
        return self.iteration * self.config.dataset_config.global_batch_size

    @consumed_samples.setter
    def consumed_samples(self, samples: int) -> None:
        """Ignore the figure of a loaded checkpoint: it follows from `iteration`."""


def _run_of(
    config: AllConfig | ModelConfig,
    model: nn.CellList,
    optimizer: FlatOptimizer | None,
    scheduler: OptimizerParamScheduler | None,
) -> _Run:
    if (optimizer is None) != (scheduler is None):
        raise ValueError("optimizer, opt_param_scheduler: pass both, or neither for the weights alone")
    whole = config if isinstance(config, AllConfig) else parallel_state.get_config()
    return _Run(whole, model, optimizer, scheduler)


def _check_format(format: str) -> None:
    if format not in ("safetensors", "ckpt"):
        raise ValueError(f"format={format!r}: must be 'safetensors' or 'ckpt', MindSpore's own")


def save_checkpoint(
    config: AllConfig | ModelConfig,
    model: nn.CellList,
    optimizer: FlatOptimizer | None = None,
    opt_param_scheduler: OptimizerParamScheduler | None = None,
    ckpt_path: str | Path = "./",
    format: str = "safetensors",
    only_save_strategy: bool = False,
    prefix: str = "network",
    epoch_num: int = 0,
    step_num: int = 0,
    crc_check: bool = False,
    keep_checkpoint_max: int | None = None,
) -> Path:
    """Write the checkpoint `ckpt_path`/iter_<step_num, at least seven digits> and return its path; all ranks call this.

    config: the configuration, or a section of the one that `set_parallel_context` was given. format: "safetensors" or
    "ckpt". prefix: the beginning of the files' names; safetensors files have none if it is "network". step_num: steps
    since the beginning. crc_check: ignored; checksums are written in any case. keep_checkpoint_max: the number of this
    process's newest checkpoints that are left in `ckpt_path`, beside the newest whole one that the process wrote, and
    those that --save-retain-interval keeps; None: --keep-checkpoint-max, by default all, or 1 with
    --save-retain-interval. Raises ValueError if only one of optimizer and opt_param_scheduler is given, if
    only_save_strategy or epoch_num is not its default, for a bad format or prefix, or for a keep_checkpoint_max below
    1; RuntimeError for a section if no configuration is known; and as `checkpointing.save_checkpoint`.
    """
    _check_format(format)
    others = {"only_save_strategy": (only_save_strategy, False), "epoch_num": (epoch_num, 0)}
    for name, (given, only) in others.items():
        if given != only:
            raise ValueError(f"save_checkpoint: {name}={given!r} is not available; only {only!r} is")
    run = _run_of(config, model, optimizer, opt_param_scheduler)
    run.iteration = step_num
    if not starts_a_name(prefix):
        raise ValueError(
            f"save_checkpoint: prefix={prefix!r}: must be letters, digits, - and _, with which names start"
        )
    if keep_checkpoint_max is not None and keep_checkpoint_max < 1:
        raise ValueError(
            f"save_checkpoint: keep_checkpoint_max={keep_checkpoint_max}: must be at least 1; leave it out to keep all"
        )
    names = FileNames(format == "ckpt", prefix)
    return checkpointing.save_checkpoint(Path(ckpt_path), run, keep_checkpoint_max, names)


def load_checkpoint(
    config: AllConfig | ModelConfig,
    model: nn.CellList,
    optimizer: FlatOptimizer | None = None,
    opt_param_scheduler: OptimizerParamScheduler | None = None,
    ckpt_path: str | Path = "./",
    format: str = "safetensors",
    crc_check: bool = False,
) -> dict[str, int]:
    """Fill the model, and the optimizer and schedule that are given, from the latest checkpoint in the directory
    `ckpt_path`, or that of --ckpt-step, or from the checkpoint that `ckpt_path` itself is. It is loaded by
    `checkpointing.load_checkpoint`, which says when all but the weights is left out. Returns {"epoch_num": 0,
    "step_num": the checkpoint's iteration}; step_num is 0 if the iteration is left out, or if there is no checkpoint
    yet. All ranks call this.

    format: "safetensors" or "ckpt"; either is read, whichever is given. crc_check: ignored; checksums are verified
    unless the configuration's `crc_check` is off. Raises ValueError if only one of optimizer and opt_param_scheduler is
    given, and for another format; RuntimeError for a section if no configuration is known; and as
    `checkpointing.load_checkpoint`.
    """
    _check_format(format)
    run = _run_of(config, model, optimizer, opt_param_scheduler)
    checkpointing.load_checkpoint(Path(ckpt_path), run)
    return {"epoch_num": 0, "step_num": run.iteration}
