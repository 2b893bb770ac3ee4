"""Lines that describe a run before its first step: layout, parameters, data, precision, the search for spikes of loss
and gradient norm, and memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config import AllConfig
from parallel_core.planner import Plan
from parallel_core.planner.beside import MEMORY_PARTS, predicted_bytes


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters, in elements, the padding of shards included: of the whole model (`whole`), of this rank,
    and of this rank's trained ones."""

    whole: int
    """Elements of the whole model: each parameter is counted once, a tied one too."""
    on_rank: int
    trained: int
    """Elements among those of `on_rank` that receive a gradient."""


def start_lines(
    plan: Plan, rank: int, stage: int, count: ParameterCount, source: str, is_planned: bool
) -> Iterator[str]:
    """The lines in order: layout, parameters, data, precision, the rules for spikes if they are looked for, and
    predicted memory if `is_planned`. stage: the rank's pipeline stage. source: as for `data_line`. is_planned: whether
    the model is the one that the configuration describes, not a script's own, so that its memory can be predicted."""
    config = plan.config
    yield layout_line(config, rank)
    yield f"Parameters: {count.whole:,} in all, {count.on_rank:,} of this rank, {count.trained:,} of these are trained"
    yield data_line(config, source)
    yield precision_line(config)
    faults = config.training_config.faults
    if faults.finds_spikes:
        yield f"Spikes: {faults.described}; {faults.loss_spike_action}"
    if is_planned:
        yield memory_line(predicted_bytes(plan, stage))


def layout_line(config: AllConfig, rank: int) -> str:
    """A line with the rank, the degrees of parallelism, the schedule (if there are several stages), the global batch
    size (the last one, if it changes), and for it the number and size of a data-parallel rank's micro-batches."""
    parallel, data, sizes = config.parallel_config, config.dataset_config, config.batch_sizes
    axes = {
        "tensor": parallel.tensor_model_parallel_size,
        "pipeline": parallel.pipeline_model_parallel_size,
        "context": parallel.context_parallel_size,
        "data": parallel.data_parallel_size,
    }
    layout = " x ".join(f"{name} {size}" for name, size in axes.items())
    if config.moe_config.num_experts:
        experts, tensor = parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size
        layout += f", experts over {experts} (each over {tensor})"
    if parallel.pipeline_model_parallel_size > 1:
        layout += f", schedule {parallel.schedule_name}"
    grows = "grows to" if sizes.changes else "has"
    return (
        f"Layout: rank {rank} of {parallel.world_size} = {layout}; a step {grows} {sizes.final} samples, micro-batches "
        f"on each data rank: {data.micro_batch_num} of {data.batch_size}"
    )


def data_line(config: AllConfig, source: str) -> str:
    """A line with the source of the tokens, the length of sequences, the tokenizer, and the number of ids, without and
    with padding. source: the loader that gives the data; "": the configuration's mock data or data files, or if it has
    none a script's own."""
    data, model = config.dataset_config, config.model_config
    parts = [data.train_data_path, data.valid_data_path, data.test_data_path]
    named = data.data_path or [path for part in parts for path in part or ()]
    split = f" --split {data.split}" if data.split and data.data_path else ""
    files = f"{' '.join(named)}{split}" or "the script's own"
    tokens = source or ("mock data" if data.mock_data else files)
    ids = f"{model.unpadded_vocab_size or model.vocab_size:,} ids, padded to {model.vocab_size:,}"
    return f"Data: {tokens}, sequences of {model.seq_length:,}; tokenizer {data.tokenizer_type or 'none'}, {ids}"


def precision_line(config: AllConfig) -> str:
    """A line with the types of parameters, layers and gradients, and the loss scale with which a new run begins."""
    training, model = config.training_config, config.model_config
    scaler = training.precision.make_loss_scaler()
    gradients = training.gradient.type_for(model.params_dtype)
    scale = "no loss scale" if scaler is None else f"loss scale {scaler.scale:g}"
    return f"Precision: parameters {model.params_dtype}, layers {model.compute_dtype}, gradients {gradients}, {scale}"


def memory_line(needed: dict[str, float]) -> str:
    """A line with a rank's predicted memory in MiB; needed: name in `MEMORY_PARTS` -> bytes."""
    sizes = ", ".join(f"{name} {needed[name] / 2**20:,.1f}" for name in MEMORY_PARTS)
    return f"Memory predicted: {sum(needed.values()) / 2**20:,.1f} MiB ({sizes}), beside the program's own"
