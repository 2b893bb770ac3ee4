"""`pretrain`: from a configuration, a model and data to a trained model.

Read it as the table of contents: model -> gradients -> optimizer -> checkpoint -> data -> loop -> log.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn

from parallel_core.blocks import adapter_findings, recompute_findings, recompute_lines
from parallel_core.checkpoint.convert.huggingface.write import huggingface_findings
from parallel_core.checkpoint.folders import save_findings
from parallel_core.config import AllConfig, ConfigError, Finding, LoraConfig, TrainingConfig
from parallel_core.config.all import required_to_train
from parallel_core.config.base import complain
from pynative import parallel_state
from pynative.checkpointing import load_adapters, load_checkpoint
from pynative.checkpointing.state import named
from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
from pynative.optimizer.offload import offload_lines
from pynative.parameter import initialize_parameters, trainable
from pynative.pipeline_parallel.stage import ForwardStep
from pynative.startup.log import log, warn
from pynative.step_position import StepPosition, set_step_position
from pynative.tape.layer_events import LayerEvents
from pynative.tensor_parallel.offload import offload_notice
from pynative.timers import RECORDED
from pynative.training.callbacks import Callback, TrainingState
from pynative.training.callbacks.evaluation import evaluate
from pynative.training.callbacks.of_run import callbacks_of_run
from pynative.training.data import (
    DataSources,
    RunData,
    build_pretraining_data_loader,
    get_train_valid_test_num_samples,
    micro_batch_of_all,
)
from pynative.training.forward_step import BatchedForwardStep, MegatronForwardStep
from pynative.training.parallel_training_reducer import ParallelTrainingReducer
from pynative.training.quantised_base import round_base
from pynative.training.start import say_start
from pynative.training.train_step import TrainOneStepCell
from pynative.training.utils import set_parallel_context, set_seed
from pynative.transformer.module import Module
from pynative.transformer.transformer import unused_recompute_notice

__all__ = [
    "ParallelTrainingReducer",
    "TrainOneStepCell",
    "build_pretraining_data_loader",
    "get_model",
    "get_train_valid_test_num_samples",
    "pretrain",
    "set_parallel_context",
    "set_seed",
    "train",
]


def get_model(model_provider_func: Callable[..., nn.Cell], config: AllConfig | TrainingConfig) -> nn.CellList:
    """This stage's chunks of the model (one without virtual stages), with their initial values. model_provider_func: as
    `pretrain` takes it. config: if it asks for adapters, all other parameters are frozen; of a TrainingConfig only the
    seed is used. Raises ValueError for a cell without `set_input_tensor`, and if adapters are asked for and this stage
    has none."""
    seed = (config.training_config if isinstance(config, AllConfig) else config).seed
    lora = config.lora_config if isinstance(config, AllConfig) else LoraConfig()
    if isinstance(config, AllConfig) and parallel_state.get_global_rank() == 0:
        for line in (*recompute_lines(config.model_config), offload_notice(config.recompute_config)):
            if line:
                log(line)
    chunks = []
    for chunk in range(parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1):
        parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        chunks.append(_chunk(model_provider_func, seed, lora))
    model = nn.CellList(chunks)
    first, last = chunks[0], chunks[-1]
    if isinstance(first, Module) and isinstance(last, Module):
        last.borrow_embedding(first)
    if lora.use_lora and not any(True for _ in trainable(model)):
        raise ValueError(
            f"--lora-target-modules: {type(chunks[0]).__name__}, which model_provider_func gives, has no adapters; "
            f"give it ColumnParallelLoRA and RowParallelLoRA, or leave the flag out"
        )
    if isinstance(config, AllConfig) and (notice := unused_recompute_notice(model, config.model_config)):
        warn(notice)
    return model


def _chunk(model_provider_func: Callable[..., nn.Cell], seed: int, lora: LoraConfig) -> nn.Cell:
    model = model_provider_func(
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage()
    )
    if not hasattr(model, "set_input_tensor"):
        raise ValueError(
            f"model_provider_func: {type(model).__name__} has no set_input_tensor(tensor), which gives a pipeline "
            f"stage its input; derive it from pynative.transformer.Module or add the method"
        )
    initialize_parameters(model, seed)
    for parameter in model.get_parameters():
        parameter.requires_grad = parameter.requires_grad and lora.trains(parameter.meta.spec)
    LayerEvents.of(model)
    return model


def _train(state: TrainingState, data_iterator: Iterator[Any] | None, callbacks: Sequence[Callback]) -> None:
    """Run the loop: steps until --train-iters, callbacks around them."""
    training, sizes, unit = state.config.training_config, state.config.batch_sizes, micro_batch_of_all(state.config)
    _resume(state, callbacks)
    for callback in callbacks:
        callback.on_train_begin(state)

    def before_update(gradient_scale: float) -> None:
        for callback in callbacks:
            callback.before_change(state)
        for callback in callbacks:
            callback.on_gradients(state, gradient_scale)

    while state.iteration < training.training_iters and not state.should_stop:
        set_step_position(StepPosition(state.iteration))
        started = time.perf_counter()
        micro_batches = sizes.at(state.consumed_samples) // unit
        with state.step_cell.timers("step", RECORDED):
            state.result = state.step_cell.step(data_iterator, before_update, micro_batches)
        state.step_seconds = time.perf_counter() - started
        state.iteration += 1
        state.consumed_samples += micro_batches * unit
        if any(callback.reads_parameters for callback in callbacks):
            state.step_cell.buffers.finish_param_sync()
        for callback in callbacks:
            callback.on_step_end(state)
    state.step_cell.buffers.finish_param_sync()
    for callback in callbacks:
        callback.before_change(state)
    for callback in callbacks:
        callback.on_train_end(state)


def _resume(state: TrainingState, callbacks: Sequence[Callback]) -> None:
    """Give callbacks the states that the loaded checkpoint has of them; warn of a state without a callback."""
    state.callbacks = callbacks
    present = named(callbacks)
    for name, kept in state.callback_states.items():
        if name in present:
            present[name].load_state_dict(kept)
        else:
            warn(f"the checkpoint holds a state of {name}, which this run does not have")


def evaluate_only(state: TrainingState, data: RunData) -> None:
    """Log the loss of the weights as they are on the validation data (--skip-train). Raises ValueError without such
    data."""
    log("Skipping training (--skip-train)")
    if not data.is_evaluated:
        raise ValueError("--skip-train: there is no validation data; give it by --split or --valid-data-path")
    evaluate(state, data.valid, state.config.training_config.eval_iters)


def _refuse(
    config: AllConfig, model_type: Any, process_non_loss_data_func: Any, extra_args_provider: Any, args_defaults: Any
) -> None:
    """Raise ConfigError with everything that was asked for and is not available."""
    findings = [
        *huggingface_findings(config),
        *adapter_findings(config),
        *recompute_findings(config),
        *required_to_train(config),
        *save_findings(config),
    ]
    if process_non_loss_data_func is not None:
        fix = "pass None and use a callback's on_step_end"
        findings.append(Finding("process_non_loss_data_func", None, "not available", fix))
    if extra_args_provider is not None or args_defaults:
        fix = "give them to initialize_megatron"
        findings.append(Finding("extra_args_provider, args_defaults", None, "all_config exists already", fix))
    if getattr(model_type, "name", "encoder_or_decoder") != "encoder_or_decoder":
        findings.append(Finding("model_type", str(model_type), "only a decoder trains here", "use encoder_or_decoder"))
    if findings:
        raise ConfigError(findings)


def _step_cell(
    model: nn.CellList,
    config: AllConfig,
    forward_step_func: Callable[..., Any] | None,
    get_batch_func: Callable[..., Any] | None,
) -> TrainOneStepCell:
    """The training step of a model: gradients, optimizer, schedule and forward step, as the configuration says."""
    for line in offload_lines(config.training_config.offload, config.training_config.gradient):
        log(line)
    optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
    scheduler = get_optimizer_param_scheduler(config)
    forward_step: ForwardStep = BatchedForwardStep(get_batch_func)
    if forward_step_func is not None:
        forward_step = MegatronForwardStep(forward_step_func, config.dataset_config.micro_batch_num)
    return TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config, forward_step)


def pretrain(
    train_valid_test_datasets_provider: Callable[..., Any] | None,
    model_provider_func: Callable[..., nn.Cell],
    model_type: Any = None,
    forward_step_func: Callable[..., Any] | None = None,
    process_non_loss_data_func: None = None,
    extra_args_provider: Any = None,
    args_defaults: dict[str, Any] | None = None,
    *,
    all_config: AllConfig,
    train_data_loader: Iterable[Any] | None = None,
    valid_data_loader: Iterable[Any] | None = None,
    get_batch_func: Callable[[Iterator[Any] | None], dict[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingState:
    """Train a model from a configuration and data, or with --skip-train evaluate it; return the state at the end.

    Args:
        train_valid_test_datasets_provider: (numbers of samples of the three splits) -> three datasets whose items are
            dicts of arrays. Or None, where loaders are given.
        model_provider_func: (pre_process, post_process) -> the cell of a chunk, with `set_input_tensor`: it gives with
            post_process the loss (or forward_step_func's output), else its part of the hidden states [s, b, h].
        model_type: one with a `name` other than "encoder_or_decoder" is refused.
        forward_step_func: Megatron's form, (data_iterator, model) -> (output, loss function); get_batch_func is unused.
        process_non_loss_data_func, extra_args_provider, args_defaults: of Megatron's signature, to be left empty: flags
            are read before this is called, by `initialize_megatron`, which takes the latter two.
        all_config: the configuration.
        train_data_loader: a MindSpore dataset or any iterable; an item is for a step, with forward_step_func for a
            micro-batch.
        valid_data_loader: the same for evaluations, in place of the provider's second dataset.
        get_batch_func: (data_iterator) -> the cell's keyword arguments for all micro-batches of this rank, cut along
            dimension 0. Default: the loader's dict.
        callbacks: callbacks besides those that the configuration asks for.

    Raises ConfigError for what is not available, or epochs of unknown length; ValueError for an unfit model or data.
    """
    _refuse(all_config, model_type, process_non_loss_data_func, extra_args_provider, args_defaults)
    _prepare(all_config)
    sources = DataSources(train_valid_test_datasets_provider, train_data_loader, valid_data_loader)
    sources.count_epochs(all_config, 1 if forward_step_func is None else all_config.dataset_config.micro_batch_num)
    model = get_model(model_provider_func, all_config)
    state = TrainingState(all_config, model, _step_cell(model, all_config, forward_step_func, get_batch_func))
    _load(state)
    _run(state, sources, callbacks)
    return state


def _prepare(config: AllConfig) -> None:
    """Set up the device, the groups and the seed, unless the script has done so."""
    if config.training_config.deterministic_mode and ms.get_context("deterministic") != "ON":
        ms.set_deterministic(True)  # MindSpore refuses to be told twice.
    if not parallel_state.model_parallel_is_initialized():
        set_parallel_context(config.parallel_config)
        set_seed(config.training_config.seed)


def _load(state: TrainingState) -> None:
    """Load the checkpoint of --load and the adapters of --lora-load, if they are given, and round the base weights with
    --qlora."""
    whole, lora = state.config.training_config.checkpoint.load_checkpoint, state.config.lora_config
    loaded = load_checkpoint(Path(whole), state) if whole else None
    if lora.qlora and lora.use_lora and not (loaded and loaded.config.get("lora_config", {}).get("qlora")):
        round_base(state.model)
    if lora.use_lora and lora.lora_load:
        load_adapters(Path(lora.lora_load), state)


def _run(state: TrainingState, sources: DataSources, callbacks: Sequence[Callback]) -> None:
    """Train, or with --skip-train evaluate, then wait for all ranks."""
    data = sources.open(state.config, state.step_cell.forward_step, state.iteration, state.consumed_samples)
    state.samples_per_epoch = data.samples_per_epoch
    say_start(state, sources.loader_name)
    if state.config.training_config.skip_train:
        evaluate_only(state, data)
    else:
        made = callbacks_of_run(state.config, data, callbacks)
        with ExitStack() as stack:
            for callback in made:
                stack.callback(callback.close)
            _train(state, data.train, made)
    # No rank leaves while another may still need it.
    parallel_state.get_world_group().barrier()
    log("Training success!")


def train(
    train_one_step_cell: TrainOneStepCell,
    train_dataloader: Iterable[Any],
    training_config: TrainingConfig,
    val_dataloader: Iterable[Any] | None = None,
    metrics: None = None,
    evaluation_func: None = None,
    resume_dict: None = None,
    get_batch_func: Callable[[Iterator[Any] | None], dict[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingState:
    """Run the loop of `pretrain` (log, evaluation, checkpoints, callbacks) around a step cell that a script has built,
    from iteration 1 (with --skip-train only evaluate), and return the state at the end; no checkpoint is loaded.

    training_config is the step cell's. get_batch_func: as in `pretrain`; None: the step cell's forward_step stays.
    metrics and evaluation_func must be None, a callback does their work; so must resume_dict: `pretrain` resumes.
    Raises ValueError for other values, ConfigError if the run cannot save into --save (`save_findings`).
    """
    others = {"metrics": metrics, "evaluation_func": evaluation_func, "resume_dict": resume_dict}
    given = [name for name, value in others.items() if value is not None]
    if given or training_config is not train_one_step_cell.config.training_config:
        wrong = ", ".join(given) or "training_config"
        raise ValueError(f"train: {wrong}: pass None, and the step cell's own training_config; see its documentation")
    if get_batch_func is not None:
        train_one_step_cell.forward_step = BatchedForwardStep(get_batch_func)
    complain(save_findings(train_one_step_cell.config))
    state = TrainingState(train_one_step_cell.config, train_one_step_cell.model, train_one_step_cell)
    _run(state, DataSources(None, train_dataloader, val_dataloader), callbacks)
    return state
