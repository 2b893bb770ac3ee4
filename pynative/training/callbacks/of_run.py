"""The callbacks of a run, in their order."""

from collections.abc import Sequence
from pathlib import Path

from parallel_core.checkpoint.commit import METRICS
from parallel_core.checkpoint.folders import OUTPUT, output_of
from parallel_core.compare import RECORD
from parallel_core.config import AllConfig
from parallel_core.config.checkpoint import CheckpointConfig
from parallel_core.config.faults import ROLL_BACK
from pynative import parallel_state
from pynative.startup.log import log
from pynative.training.callbacks import (
    BesideCallback,
    Callback,
    CheckpointCallback,
    EvaluationCallback,
    ExitCallback,
    FiniteCallback,
    Float8Callback,
    GradientNormsCallback,
    LogCallback,
    MemoryCallback,
    MetricsCallback,
    ProgressCallback,
    RecordCallback,
    RollbackCallback,
    SignalCallback,
    SkippedStepsCallback,
    StragglerCallback,
    TimingsCallback,
    WeightHashCallback,
    expert_callbacks,
    profile_callbacks,
    writers_callbacks,
)
from pynative.training.data import RunData


def callbacks_of_run(config: AllConfig, data: RunData, more: Sequence[Callback]) -> list[Callback]:
    """The callbacks of a run on this rank: those that the configuration asks for, and a script's own (`more`) ahead of
    those that save, roll back, record, profile, trace or, by --exit flags, stop. data: the run's, for evaluations."""
    training, checkpoint = config.training_config, config.training_config.checkpoint
    output = _output(checkpoint)
    callbacks: list[Callback] = [LogCallback(training.log_interval), BesideCallback(), SkippedStepsCallback()]
    callbacks.append(TimingsCallback(training.log, training.log_interval))
    if training.eval_iters and training.eval_interval:
        callbacks.append(EvaluationCallback(data, training.eval_interval, training.eval_iters))
    if parallel_state.get_global_rank() == 0:
        callbacks.append(MetricsCallback(output / METRICS))
    callbacks += writers_callbacks(training.log, output)
    if training.faults.log_straggler:
        callbacks.append(StragglerCallback(training.log_interval, training.faults.straggler_minmax_count))
    if training.log.log_memory_interval:
        callbacks.append(MemoryCallback(training.log.log_memory_interval))
    if training.check_for_nan_in_grad:
        callbacks.append(FiniteCallback())
    if training.check_weight_hash_across_dp_replicas_interval:
        callbacks.append(WeightHashCallback(training.check_weight_hash_across_dp_replicas_interval))
    if training.log_local_norm:
        callbacks.append(GradientNormsCallback(training.log_interval))
    recipe = config.model_config.float8.recipe
    if recipe is not None and recipe.is_delayed:
        callbacks.append(Float8Callback())
    callbacks += expert_callbacks(config.model_config, output, more)
    callbacks += more
    if checkpoint.output_dir:
        directory = Path(checkpoint.output_dir)
        may_fail = checkpoint.on_save_failure == "warn"
        saving = CheckpointCallback(directory, checkpoint.save_interval, checkpoint.async_save, may_fail)
        callbacks.append(saving)
        if training.log.log_progress and parallel_state.get_global_rank() == 0:
            callbacks.append(ProgressCallback(directory, checkpoint.async_save))
        if training.faults.loss_spike_action == ROLL_BACK:
            callbacks.append(RollbackCallback(saving))
    profiler = training.profiler
    if profiler.record:
        callbacks.append(RecordCallback(output / RECORD, profiler.record_step_start, profiler.record_step_end))
    callbacks += profile_callbacks(config, output)
    if training.exit_interval or training.exit_duration_in_mins:
        callbacks.append(ExitCallback(training.exit_interval, training.exit_duration_in_mins))
    if training.exit_signal_handler:
        callbacks.append(SignalCallback())  # last, so that no signal ends the process during the final save
    return callbacks


def _output(checkpoint: CheckpointConfig) -> Path:
    output = output_of(checkpoint)
    if checkpoint.output_dir is None and output.name != OUTPUT and parallel_state.get_global_rank() == 0:
        log(f"{OUTPUT} has checkpoints of another run: this one, without --save, writes its figures into {output}")
    return output
