"""Loading: any rank of any layout takes its shards from whatever layout wrote the checkpoint.

Names and shapes and the files' checksums are checked on all ranks before the first weight is written; with
--no-resume-crc-check `load_checkpoint` and `roll_back` leave the checksums out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from mindspore import Parameter, nn

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.native import OF_ADAPTERS
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.folders import is_first_start
from parallel_core.checkpoint.manifest import Manifest, Run
from parallel_core.checkpoint.reader import CheckpointReader, Vocabulary
from parallel_core.checkpoint.schedule import schedule_problems
from parallel_core.config import AllConfig
from parallel_core.findings import ConfigError, Finding
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from parallel_core.optimizer import MAIN_PARAM
from parallel_core.sharding import ShardSpec
from parallel_core.strictness import STRICTNESS, Strictness
from pynative import parallel_state
from pynative.checkpointing.agreement import agree
from pynative.checkpointing.optimizer_state import optimizer_problems, read_optimizer
from pynative.checkpointing.state import RunState
from pynative.parameter import name_parameters, place_of, type_name, whole_parameters, write_parameter
from pynative.startup.log import log, warn
from pynative.tensor_parallel.random import get_rng_tracer


def load_checkpoint(directory: Path, state: RunState) -> Manifest | None:
    """Continue from the latest checkpoint in `directory`, or that of --ckpt-step (or from `directory`, if it is one
    itself), ours or another tool's, which is converted while it is read. Returns its manifest.

    With --finetune, and where `resume_training` is False, only weights are taken; with --no-load-optim neither
    optimizer nor schedule, as from another tool's checkpoint without an optimizer. If the checkpoint lacks adapters
    that the run has, they begin anew and only weights are taken. Returns None if nothing was saved yet in a directory
    that --save names too. Raises ValueError if any other directory has no checkpoint, or if that is damaged or does not
    fit, before anything is changed as far as checksums and headers show it; OSError if reading fails, then or later.
    --resume-training and --exit-on-missing-checkpoint turn None into an error; --resume-training also refuses a
    checkpoint of weights alone, or one without the run's adapters; with --no-load-optim a checkpoint above iteration 0
    is none of weights alone.
    """
    training = state.config.training_config
    if is_first_start(directory, training.checkpoint):
        warn(f"--load {directory}: no checkpoint yet, starting from initial values")
        return None
    weights_alone = training.checkpoint.begins_anew or training.checkpoint.no_load_optim
    reader = _open(directory, state.config, optimizer=not weights_alone)
    adapters_begin = state.config.lora_config.use_lora and not reader.has_adapters
    if training.checkpoint.resume_training:
        _check_goes_on(reader, adapters_begin=adapters_begin, takes_states=not weights_alone)
    weights_alone = weights_alone or _is_none_of_a_run(reader) or adapters_begin
    optimizer, scheduler = (None, None) if weights_alone else (state.step_cell.optimizer, state.step_cell.scheduler)
    strictness = STRICTNESS[training.checkpoint.dist_ckpt_strictness]
    problems = optimizer_problems(reader, optimizer, strictness) + _schedule_problems(reader, scheduler, state.config)
    problems += _problems_of_settings(reader, state.config, strictness)
    if strictness.refuses_unused and not state.config.lora_config.use_lora:
        problems += _adapters_too_many(reader)
    wanted: Wanted = (lambda spec: not _is_adapter(spec)) if adapters_begin else _any
    exactly, verifies = optimizer is not None, training.checkpoint.crc_check
    _check(reader, state.model, problems, strictness, exactly=exactly, wanted=wanted, verifies=verifies)
    _read_weights(reader, state.model, exactly=exactly, wanted=wanted)
    _compare_adapters(reader, state.config)
    if optimizer is not None:
        read_optimizer(reader, optimizer, strictness)
    if scheduler is not None:
        from_flags = not state.config.optimizer_config.use_checkpoint_opt_param_scheduler
        scheduler.load_state_dict(reader.manifest.scheduler, override=from_flags)
    if training.checkpoint.begins_anew or adapters_begin:
        log(f"Loaded the weights of {reader.directory}; training, optimizer and data begin at step 0")
        return reader.manifest
    _take_up(reader, state)
    log(f"Loaded {reader.directory}; training goes on after step {state.iteration}")
    return reader.manifest


def roll_back(directory: Path, state: RunState) -> Path | None:
    """Take up the latest checkpoint in `directory` once more: weights, optimizer, schedule, iteration, the run's id,
    `callback_states` and, without --no-load-rng, a stored seed, but not the count of samples. Returns the checkpoint's
    directory; None, and nothing is changed, if `commit.has_checkpoint` finds none.

    Raises ValueError if it is damaged or does not fit, before anything is changed as far as checksums and headers show
    it; OSError if reading fails, then or later. All ranks call this.
    """
    if not commit.has_checkpoint(directory):
        return None
    consumed, strictness = state.consumed_samples, STRICTNESS["raise_all"]
    reader = open_checkpoint(directory)
    optimizer, scheduler = state.step_cell.optimizer, state.step_cell.scheduler
    problems = optimizer_problems(reader, optimizer, strictness)
    verifies = state.config.training_config.checkpoint.crc_check
    _check(reader, state.model, problems, strictness, exactly=True, wanted=_any, verifies=verifies)
    _read_weights(reader, state.model, exactly=True, wanted=_any)
    if optimizer is not None:
        read_optimizer(reader, optimizer, strictness)
    if scheduler is not None:
        scheduler.load_state_dict(reader.manifest.scheduler, override=False)
    _take_up(reader, state)
    state.consumed_samples = consumed
    return reader.directory


def _take_up(reader: CheckpointReader, state: RunState) -> None:
    """Set the run's identity, iteration, samples, callbacks' states and random seed to those of the checkpoint."""
    state.run_id, state.resumed_from = reader.manifest.run_id or state.run_id, reader.directory
    state.callback_states = reader.manifest.state
    state.iteration = reader.manifest.iteration
    state.consumed_samples = _consumed_samples(reader.manifest, state.config)
    if reader.manifest.rng is not None and not state.config.training_config.checkpoint.no_load_rng:
        get_rng_tracer().seed = reader.manifest.rng["seed"]


def _consumed_samples(run: Run, config: AllConfig) -> int:
    """The samples that a checkpoint's run had taken. Files without that count are of a run with one batch size, which
    is assumed to be this run's, as in Megatron."""
    return run.consumed_samples or run.iteration * config.batch_sizes.final


def _open(directory: Path, config: AllConfig, *, optimizer: bool) -> CheckpointReader:
    checkpoint, model = config.training_config.checkpoint, config.model_config
    vocabulary = Vocabulary(model.unpadded_vocab_size, model.vocab_size)
    kind, step = "hf" if checkpoint.convert_from_huggingface else "auto", checkpoint.ckpt_step
    later = None if step is not None or parallel_state.get_global_rank() > 0 else commit.overlooked(directory)
    if later is not None:
        warn(later)
    return open_checkpoint(directory, step, vocabulary, kind=kind, optimizer=optimizer)


def _problems_of_settings(reader: CheckpointReader, config: AllConfig, strictness: Strictness) -> list[str]:
    """Why the checkpoint's settings describe another network than the configuration; under a strictness that allows
    absent names they are only warned of, and none is returned."""
    found = reader.settings_problems(config)
    if found and strictness.refuses_absent:
        take = "give the checkpoint's values (--use-checkpoint-args takes them)"
        return [*found, f"{take}, or --dist-ckpt-strictness log_all to train another network from its weights"]
    for problem in found if parallel_state.get_global_rank() == 0 else ():
        warn(problem)
    return []


def _check_goes_on(reader: CheckpointReader, *, adapters_begin: bool, takes_states: bool) -> None:
    """Raise ConfigError if a run cannot go on from the checkpoint: it lacks the run's adapters, or has weights alone.
    takes_states: the optimizer's states are read; if they are left out, an iteration above 0 is enough."""
    rule = ""
    if adapters_begin:
        rule = f"{reader.directory} has no adapters to go on with"
    elif reader.begins or (takes_states and not reader.holds_a_run):
        rule = f"{reader.directory} has weights alone, no run that can go on"
    if rule:
        raise ConfigError([Finding("--resume-training", None, rule, "leave it out")])


def _is_none_of_a_run(reader: CheckpointReader) -> bool:
    """Whether a checkpoint has weights alone, which is logged."""
    if reader.holds_a_run:
        return False
    if parallel_state.get_global_rank() == 0:
        log(f"{reader.directory} has weights alone: the optimizer and its schedule start anew")
    return True


def load_adapters(directory: Path, state: RunState) -> None:
    """Take the adapters of the checkpoint in `directory` (--lora-load). A run that goes on (its iteration is above 0)
    keeps its own: this reads nothing then, and warns.

    Raises ValueError if there is no checkpoint, or it is damaged, or its adapters differ from the model's by name or
    shape, before anything is changed as far as checksums and headers show it; OSError if reading fails, then or later.
    All ranks call this.
    """
    if state.iteration:
        warn(f"--lora-load {directory}: is not read: the run goes on with its own adapters")
        return
    reader = open_checkpoint(directory, optimizer=False)
    offered = [name for name in reader.manifest.weights if name.endswith(OF_ADAPTERS)]
    _check(reader, state.model, [], STRICTNESS["raise_all"], exactly=False, wanted=_is_adapter, offered=offered)
    _read_weights(reader, state.model, exactly=False, wanted=_is_adapter)
    _compare_adapters(reader, state.config)
    log(f"Loaded the adapters of {reader.directory}")


def _adapters_too_many(reader: CheckpointReader) -> list[str]:
    """The problem that a checkpoint has adapters and the run has none, in a list; empty if the checkpoint has none."""
    if not reader.has_adapters:
        return []
    lora = reader.manifest.config["lora_config"]
    names = " ".join(map(str, lora.get("target_modules") or ()))
    flags = f"--lora-r {lora['lora_rank']} --lora-alpha {lora.get('lora_alpha')} --lora-target-modules {names}"
    return [f"{reader.directory} has adapters; give {flags}, or merge them by parallel_core.checkpoint.convert"]


def _compare_adapters(reader: CheckpointReader, config: AllConfig) -> None:
    """For a run with adapters, log that the checkpoint has none, or warn that its own were trained with another
    --lora-alpha, which no shape tells."""
    if not config.lora_config.use_lora:
        return
    then, now = reader.manifest.config.get("lora_config", {}).get("lora_alpha"), config.lora_config.lora_alpha
    if not reader.has_adapters:
        log(f"{reader.directory} has no adapters: they begin anew, beside its weights alone")
    elif then != now:
        warn(f"--lora-alpha {now:g}: the adapters of {reader.directory} were trained with {then}")


Wanted = Callable[[ShardSpec], bool]
"""A function that says of a parameter's spec whether it is read."""


def _any(spec: ShardSpec) -> bool:
    return True


def _is_adapter(spec: ShardSpec) -> bool:
    return spec.role == "adapter"


def load_model(directory: Path, model: nn.Cell, vocabulary: Vocabulary | None = None) -> Manifest:
    """Fill a model's weights from the checkpoint in `directory`, without anything that belongs to training, and return
    the checkpoint's manifest. All ranks call this.

    vocabulary: the model's, where its tables may have other padding than the checkpoint's; None: they have the same.
    Raises ValueError if the checkpoint is missing, damaged, or does not fit, before anything is changed as far as
    checksums and headers show it; OSError if reading fails, then or later.
    """
    reader = open_checkpoint(directory, vocabulary=vocabulary, optimizer=False)
    _check(reader, model, [], STRICTNESS["raise_all"], exactly=False)
    _read_weights(reader, model, exactly=False)
    return reader.manifest


def _check(
    reader: CheckpointReader,
    model: nn.Cell,
    problems: list[str],
    strictness: Strictness,
    *,
    exactly: bool,
    wanted: Wanted = _any,
    offered: Sequence[str] | None = None,
    verifies: bool = True,
) -> None:
    """Raise ValueError on every rank if anything is wrong on any. All ranks call this.

    problems: those that are known already. strictness: treats names that only one side has. exactly: a weight of
    another type than the stored one is read from its float32 copy. wanted: which of the model's parameters will be
    read. offered: names that a model can use, by default those of all weights. verifies: every file is read through and
    compared with its checksums.
    """
    world = parallel_state.get_world_group()
    parameters = {one.meta.spec.name: one for one in name_parameters(model) if wanted(one.meta.spec)}
    specs = {name: parameter.meta.spec for name, parameter in parameters.items()}
    absent = [] if strictness.refuses_absent else [name for name in specs if not reader.has(name)]
    read = {_read_for(reader, one, exactly) if reader.has(name) else name: name for name, one in parameters.items()}
    found = [reader.problem(source, specs[name]) for source, name in read.items() if name not in absent]
    if world.rank == 0:
        for note in reader.notes:
            warn(f"{reader.directory}: {note}")
        for file in reader.unverified_files:
            warn(f"{reader.directory / file}: has no checksums: a changed byte in it would not be found")
    damaged = reader.damaged_files(world.rank, world.size) if verifies else []
    if not verifies and world.rank == 0:
        log(f"{reader.directory}: its bytes are not compared with their checksums (--no-resume-crc-check)")
    if damaged:
        damaged.append(commit.another(reader.directory))
    problems = [*damaged, *problems, *(problem for problem in found if problem)]
    source = str(reader.directory)
    offered = reader.manifest.weights if offered is None else offered
    unused = agree(offered, specs.keys(), problems, source, all_used=strictness.refuses_unused)
    if strictness.logs_absent:
        for name in absent:
            warn(f"{name}: the model has it, {source} does not: it keeps its initial values")
    if strictness.logs_unused:
        for name in unused:
            warn(f"{name}: {source} has it, the model does not")


def _schedule_problems(
    reader: CheckpointReader, scheduler: OptimizerParamScheduler | None, config: AllConfig
) -> list[str]:
    if scheduler is None:
        return []
    return schedule_problems(reader.manifest.scheduler, scheduler.state_dict(), config)


def _read_weights(reader: CheckpointReader, model: nn.Cell, *, exactly: bool, wanted: Wanted = _any) -> None:
    """Fill the model's wanted parameters that the checkpoint has.

    exactly: a weight whose type differs from the stored one is read from the float32 copy that the optimizer of a
    16-bit run kept, so that it is rounded once.
    """
    for parameter in whole_parameters(model):
        name = parameter.meta.spec.name
        if not (wanted(parameter.meta.spec) and reader.has(name)):
            continue
        present = parameter.asnumpy().copy()  # Rows of padding that the checkpoint lacks keep their values.
        write_parameter(parameter, reader.read(_read_for(reader, parameter, exactly), place_of(parameter), out=present))


def _read_for(reader: CheckpointReader, parameter: Parameter, exactly: bool) -> str:
    """The name of the stored tensor that a weight is read from: its own or, with `exactly` and another type than the
    weight's, the optimizer's float32 copy if there is one."""
    name = parameter.meta.spec.name
    exact, stored = f"{MAIN_PARAM}.{name}", reader.manifest.tensors[name].dtype
    return exact if exactly and type_name(parameter.dtype) != stored and reader.has(exact) else name
