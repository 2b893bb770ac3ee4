"""Rules of the pipeline: its schedule, and the layers of its stages."""

from collections.abc import Iterator
from typing import Any

from parallel_core.batch_sizes import BatchSizes
from parallel_core.config.parallel import ParallelConfig
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding, Setting
from parallel_core.partition import chunk_counts, is_nested, offset_rows, stage_budgets
from parallel_core.schedules.folded import CHUNKS
from parallel_core.schedules.generators import COMBINED
from parallel_core.schedules.limits import Asked, refusals


def _chunks(parallel: ParallelConfig) -> Setting:
    """The setting that asked for virtual stages, for messages."""
    if is_nested(parallel.num_layer_list):
        return Setting("--num-layer-list", parallel.num_layer_list)
    per_chunk = parallel.num_layers_per_virtual_pipeline_stage
    if per_chunk is not None:
        return Setting("--num-layers-per-virtual-pipeline-stage", per_chunk)
    if parallel.placement.folded and parallel.chunks == CHUNKS:
        return Setting("--pipeline-schedule", parallel.schedule_name)
    return Setting("--virtual-pipeline-model-parallel-size", parallel.chunks)


def schedule_fits(config: Sections) -> Iterator[Finding]:
    """Check that the schedule takes the stages, the virtual stages, the size of groups of micro-batches, and the
    number of micro-batches of the final global batch size; where batch sizes change (by a sound ramp or schedule), also
    those of the other sizes, with at most one finding, about the first of these that it does not take."""
    parallel, data = config.parallel_config, config.dataset_config
    group = parallel.microbatch_group_size_per_virtual_pipeline_stage
    batch = Setting("--global-batch-size", f"{data.global_batch_size} (micro-batches: {data.micro_batch_num})")
    asked = Asked(
        schedule=Setting("--pipeline-schedule", parallel.schedule_name),
        stages=Setting("--pipeline-model-parallel-size", parallel.pipeline_model_parallel_size),
        micro_batches=batch,
        chunks=_chunks(parallel),
        group_size=Setting("--microbatch-group-size-per-virtual-pipeline-stage", group),
    )
    sizes = (parallel.schedule_name, parallel.pipeline_model_parallel_size)
    yield from refusals(*sizes, data.micro_batch_num, parallel.chunks, group, asked)
    unit, steps = data.batch_size * parallel.data_parallel_size, BatchSizes.of(data, config.model_config.seq_length)
    flag = "--step-batch-size-schedule" if steps.schedule else "--rampup-batch-size"
    for size in steps.sizes() if steps.changes and steps.is_sound else ():
        if size == steps.final:
            continue
        batch = Setting(flag, f"(size {size}, micro-batches: {size // unit})")
        found = refusals(*sizes, size // unit, parallel.chunks, group, asked._replace(micro_batches=batch))
        if first := next(found, None):
            yield first
            return


def pairs_are_possible(config: Sections) -> Iterator[Finding]:
    """Check combined 1F1B, where a layer can be in a forward and in another micro-batch's backward at once: it goes
    without recomputation of whole layers, activations in host memory, and ZeRO stages 2 and 3."""
    parallel = config.parallel_config
    if parallel.pipeline_schedule == COMBINED and config.against_pairs:
        schedule = Setting("--pipeline-schedule", COMBINED)
        yield schedule.breaks(f"does not go with {config.against_pairs}", "leave one out")


_DIVIDED = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_EXCLUSIVE = {
    "num_layer_list": ("offset", *_DIVIDED, *_COUNTED),
    "account_for_embedding_in_pipeline_split": (*_DIVIDED, "standalone_embedding_stage"),
    "account_for_loss_in_pipeline_split": _DIVIDED,
    "standalone_embedding_stage": ("decoder_first_pipeline_num_layers",),
    "offset": (*_DIVIDED, *_COUNTED, "standalone_embedding_stage"),
}
"""Option that gives the layers of stages -> other options that give them, too."""


def folded_pipeline_fits(config: Sections) -> Iterator[Finding]:
    """Check a folded pipeline, whose first stage has both ends of the model: it needs untied embeddings, and must go
    without options that give the first or the last stage its layers, set the embedding's stage apart, or count the
    embedding or the output layer as a layer."""
    parallel, model = config.parallel_config, config.model_config
    if not parallel.placement.folded:
        return
    schedule = Setting("--pipeline-schedule", parallel.schedule_name)
    if not model.untie_embeddings_and_output_weights:
        rule = "needs an output layer of its own, on the first stage beside the embedding"
        yield schedule.breaks(rule, "add --untie-embeddings-and-output-weights")
    for name in (*_DIVIDED, *_COUNTED, "standalone_embedding_stage"):
        if (value := getattr(parallel, name)) is not None and value is not False:
            rule = f"is of pipelines that end on the last stage, unlike {schedule}"
            yield parallel.breaks(name, rule, "leave it out")


def one_way_to_split(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    for earlier, others in _EXCLUSIVE.items():
        flag = type(parallel).__dataclass_fields__[earlier].metadata["flag"]
        for later in others:
            values = getattr(parallel, earlier), getattr(parallel, later)
            if all(value is not None and value is not False for value in values):
                yield parallel.clashes(later, flag, "leave one out")


def stages_have_layers(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, alone = parallel.pipeline_model_parallel_size, parallel.standalone_embedding_stage
    if alone and stages < 2:
        needed = "--pipeline-model-parallel-size 2 or more"
        yield parallel.needs("standalone_embedding_stage", needed, "raise it or leave it out")
    elif parallel.num_layer_list is None and layers < stages - alone:
        rule = f"{'less the stage of the embedding ' if alone else ''}must not exceed --num-layers {layers}"
        yield parallel.breaks("pipeline_model_parallel_size", rule, "lower it, or a stage would have no layer")


def layer_list_fits(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.chunks
    entries: Any = parallel.num_layer_list
    if entries is None:
        return
    rows, fix = entries if is_nested(entries) else [entries], "change it"
    total = sum(map(sum, rows))
    if is_nested(entries) and (len(rows) != chunks or any(len(row) != stages for row in rows)):
        rule = f"needs {chunks} lists (virtual stages) of {stages} numbers (--pipeline-model-parallel-size)"
    elif len(rows[0]) != stages:
        rule = f"needs {stages} numbers, one for each stage (--pipeline-model-parallel-size)"
    elif total != layers:
        rule = f"adds up to {total}, must add up to --num-layers {layers}"
    elif _is_too_short(rows, parallel):
        rule = "each number must be at least 1, save that beside the embedding and that beside the output layer"
        fix = "change it or lower the number of stages"
    elif parallel.standalone_embedding_stage and any(row[0] for row in rows):
        rule, fix = "must give the first stage 0 layers with --standalone-embedding-stage", ""
    else:
        return
    yield parallel.breaks("num_layer_list", rule, fix)


def offset_fits(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, chunks, offset = parallel.pipeline_model_parallel_size, parallel.chunks, parallel.offset
    if offset is None or parallel.num_layer_list is not None:
        return
    share, rest = divmod(layers, stages * chunks)
    if config.has_too_many_chunks:
        rule = f"{stages * chunks} chunks are more than the {layers} layers"
    elif not _has_shape(offset, stages, chunks):
        rule = f"must be a list of {stages} stages' numbers, or for each of {chunks} chunks such a list"
    elif (total := sum(map(sum, offset_rows(offset, chunks)))) != rest:
        beyond = f"the {rest} layers that {layers} are beyond {stages * chunks} x {share}"
        rule = f"adds up to {total}, must add up to {beyond}"
    elif share + min(map(min, offset_rows(offset, chunks))) < 1:
        rule = f"leaves a chunk without a layer: each has {share} and its offset"
    else:
        return
    yield parallel.breaks("offset", rule, "change it")


def _has_shape(offset: list[Any], stages: int, chunks: int) -> bool:
    rows = offset_rows(offset, chunks)
    return len(rows) == chunks and all(len(row) == stages for row in rows)


def _is_too_short(rows: list[list[int]], parallel: ParallelConfig) -> bool:
    """Whether a virtual stage has neither layers nor embedding nor output layer. rows: layers by chunk and stage."""
    chunks, alone = parallel.chunks, parallel.standalone_embedding_stage
    ends = {(0, 0), parallel.placement.last[::-1]} if len(rows) == chunks else set()
    empty = ends | {(chunk, 0) for chunk in range(len(rows)) if alone}
    return any(n < ((chunk, stage) not in empty) for chunk, row in enumerate(rows) for stage, n in enumerate(row))


def end_stages_leave_the_rest_even(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    ends = {f"--{name.replace('_', '-')}": getattr(parallel, name) for name in _DIVIDED}
    given = {flag: layers for flag, layers in ends.items() if layers is not None}
    if not given:
        return
    middle = parallel.pipeline_model_parallel_size - len(given) - parallel.standalone_embedding_stage
    rest = config.model_config.num_layers - sum(given.values())
    if middle < 0 or rest < middle or (rest % middle if middle else rest):
        rule = f"leaves {rest} layers for {middle} stages, which must share them evenly, at least one each"
        flags = " ".join(f"{flag} {layers}" for flag, layers in given.items())
        yield Finding(flags, None, rule, "change it or --num-layers")


def chunks_divide(config: Sections) -> Iterator[Finding]:
    """Check that virtual stages divide the layers of each stage (with the embedding and the output layer, where they
    count as layers), unless --offset, or a list for each chunk in --num-layer-list, says the layers of chunks, or
    there are too many stages (`has_too_many_stages`)."""
    parallel, layers, chunks = config.parallel_config, config.model_config.num_layers, config.parallel_config.chunks
    if is_nested(parallel.num_layer_list) or parallel.offset is not None or config.has_too_many_stages:
        return
    uneven = [budget for budget in stage_budgets(layers, parallel) if budget % chunks]
    if uneven and parallel.num_layer_list is not None:
        rule = f"each number must be a multiple of the {chunks} virtual stages"
        yield parallel.breaks("num_layer_list", rule, "change it, or give a list for each of them")
    elif uneven:
        stages = f"--num-layers {layers}, --pipeline-model-parallel-size {parallel.pipeline_model_parallel_size}"
        rule = f"{chunks} virtual stages do not divide the {uneven[0]} layers of a stage ({stages})"
        yield _chunks(parallel).breaks(rule, "change one of them")


def chunks_have_the_layers_asked_for(config: Sections) -> Iterator[Finding]:
    parallel, asked = config.parallel_config, config.parallel_config.num_layers_per_virtual_pipeline_stage
    if asked is None or config.has_too_many_chunks:
        return
    counts = [n for row in chunk_counts(config.model_config.num_layers, parallel) for n in row]
    if counts and max(counts) != asked:
        rule = f"the rest of the layout makes virtual stages of {max(counts)} layers"
        yield parallel.breaks("num_layers_per_virtual_pipeline_stage", rule, "change it or leave it out")


def noop_layers_choose_no_keys(config: Sections) -> Iterator[Finding]:
    """Check that no layer that does something shares the choice of keys of one that does nothing."""
    model, idle = config.model_config, {*(config.parallel_config.noop_layers or ())}
    sparse, layers = model.sparse_attention, model.num_layers
    pattern = sparse.index_topk_pattern
    if not idle or not sparse.enabled or model.compressed_attention.enabled:
        return
    if pattern and (pattern[0] != "F" or len(pattern) != layers):
        return
    working = (layer for layer in range(layers) if layer not in idle)
    wrong = next((layer for layer in working if sparse.chosen_by(layer, layers) in idle), None)
    if wrong is not None:
        rule = f"layer {wrong} shares its choice of keys, which a layer that does nothing does not make"
        fix = "name layers that share a choice, or with this one all that do"
        yield config.parallel_config.breaks("noop_layers", rule, fix, value=sparse.chosen_by(wrong, layers))


def noop_layers_exist(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    idle = parallel.noop_layers or []
    for layer in idle:
        if not 0 <= layer < layers:
            yield parallel.breaks(
                "noop_layers", f"must be between 0 and --num-layers {layers} - 1", "remove it", value=layer
            )
    listed = ",".join(map(str, idle))
    if len(set(idle)) < len(idle):
        yield parallel.breaks("noop_layers", "names a layer twice", "remove one", listed)
    if len(set(idle)) >= layers:
        yield parallel.breaks("noop_layers", "leaves no layer that does something", "remove one", listed)
