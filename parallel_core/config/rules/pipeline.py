"""Rules of the pipeline: its schedule, and the layers of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from parallel_core.batch_sizes import BatchSizes
from parallel_core.config.parallel import ParallelConfig
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding, Setting
from parallel_core.partition import chunk_counts, is_nested, offset_rows, stage_budgets
from parallel_core.schedules.limits import Given, refusals


def _chunks(parallel: ParallelConfig) -> Setting:
    """What asked for virtual stages."""
    if is_nested(parallel.num_layer_list):
        return Setting("--num-layer-list", parallel.num_layer_list)
    per_chunk = parallel.num_layers_per_virtual_pipeline_stage
    if per_chunk is not None:
        return Setting("--num-layers-per-virtual-pipeline-stage", per_chunk)
    return Setting("--virtual-pipeline-model-parallel-size", parallel.virtual_pipeline_model_parallel_size or 1)


def schedule_fits(config: Sections) -> Iterator[Finding]:
    parallel, data = config.parallel_config, config.dataset_config
    name, stages = parallel.schedule_name, parallel.pipeline_model_parallel_size
    group = parallel.microbatch_group_size_per_virtual_pipeline_stage
    given = Given(
        schedule=Setting("--pipeline-schedule", name),
        stages=Setting("--pipeline-model-parallel-size", stages),
        micro_batches=Setting(
            "--global-batch-size", f"{data.global_batch_size} (micro-batches: {data.micro_batch_num})"
        ),
        chunks=_chunks(parallel),
        group_size=Setting("--microbatch-group-size-per-virtual-pipeline-stage", group),
    )
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    yield from refusals(name, stages, data.micro_batch_num, chunks, group, given)
    yield from _smaller_batches(config, given)


def _smaller_batches(config: Sections, given: Given) -> Iterator[Finding]:
    """Of batches that grow the first that the schedule has no place for."""
    parallel, data = config.parallel_config, config.dataset_config
    sizes, unit = BatchSizes.of(data, config.model_config.seq_length), data.batch_size * parallel.data_parallel_size
    if not sizes.changes or not sizes.is_sound:
        return
    chunks, group = parallel.virtual_pipeline_model_parallel_size or 1, given.group_size.value
    flag = "--step-batch-size-schedule" if sizes.schedule else "--rampup-batch-size"
    for size in sizes.sizes()[:-1]:
        setting = Setting(flag, f"(size {size}, micro-batches: {size // unit})")
        found = [
            *refusals(
                parallel.schedule_name,
                given.stages.value,
                size // unit,
                chunks,
                group,
                given._replace(micro_batches=setting),
            )
        ]
        if found:
            yield found[0]
            return


EXCLUSIVE = (
    ("num_layer_list", "offset"),
    ("num_layer_list", "decoder_first_pipeline_num_layers"),
    ("num_layer_list", "decoder_last_pipeline_num_layers"),
    ("num_layer_list", "account_for_embedding_in_pipeline_split"),
    ("num_layer_list", "account_for_loss_in_pipeline_split"),
    ("account_for_embedding_in_pipeline_split", "decoder_first_pipeline_num_layers"),
    ("account_for_embedding_in_pipeline_split", "decoder_last_pipeline_num_layers"),
    ("account_for_embedding_in_pipeline_split", "standalone_embedding_stage"),
    ("account_for_loss_in_pipeline_split", "decoder_first_pipeline_num_layers"),
    ("account_for_loss_in_pipeline_split", "decoder_last_pipeline_num_layers"),
    ("standalone_embedding_stage", "decoder_first_pipeline_num_layers"),
    ("offset", "decoder_first_pipeline_num_layers"),
    ("offset", "decoder_last_pipeline_num_layers"),
    ("offset", "account_for_embedding_in_pipeline_split"),
    ("offset", "account_for_loss_in_pipeline_split"),
    ("offset", "standalone_embedding_stage"),
)
"""Pairs of fields that both say how many layers a stage has."""


def one_way_to_split(config: Sections) -> Iterator[Finding]:
    flags = {e.name: e.metadata["flag"] for e in fields(config.parallel_config) if "flag" in e.metadata}
    for earlier, later in EXCLUSIVE:
        values = [getattr(config.parallel_config, name) for name in (earlier, later)]
        if all(value is not None and value is not False for value in values):
            yield Finding(flags[later], values[1], f"does not go with {flags[earlier]}", "leave one out")


def stages_have_layers(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, alone = parallel.pipeline_model_parallel_size, parallel.standalone_embedding_stage
    if alone and stages < 2:
        yield Finding(
            "--standalone-embedding-stage",
            None,
            "needs --pipeline-model-parallel-size 2 or more",
            "raise it or leave it out",
        )
    elif parallel.num_layer_list is None and layers < stages - alone:
        yield Finding(
            "--pipeline-model-parallel-size",
            stages,
            f"{('less the stage of the embedding ' if alone else '')}must not exceed --num-layers {layers}",
            "lower it, or a stage would have no layer",
        )


def layer_list_fits(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size or 1
    entries: Any = parallel.num_layer_list
    if entries is None:
        return
    rows = entries if is_nested(entries) else [entries]
    total = sum(map(sum, rows))
    if is_nested(entries) and (len(rows) != chunks or any(len(row) != stages for row in rows)):
        yield Finding(
            "--num-layer-list",
            entries,
            f"needs {chunks} lists (virtual stages) of {stages} numbers (--pipeline-model-parallel-size)",
            "change it",
        )
    elif len(rows[0]) != stages:
        yield Finding(
            "--num-layer-list",
            entries,
            f"needs {stages} numbers, one for each stage (--pipeline-model-parallel-size)",
            "change it",
        )
    elif total != layers:
        yield Finding(
            "--num-layer-list", entries, f"adds up to {total}, must add up to --num-layers {layers}", "change it"
        )
    elif _is_too_short(rows, parallel):
        yield Finding(
            "--num-layer-list",
            entries,
            "each number must be at least 1, save the first (the embedding alone) and the last (the output layer "
            "alone)",
            "change it or lower the number of stages",
        )
    elif parallel.standalone_embedding_stage and any(row[0] for row in rows):
        yield Finding(
            "--num-layer-list", entries, "must give the first stage 0 layers with --standalone-embedding-stage"
        )


def offset_fits(config: Sections) -> Iterator[Finding]:
    parallel, layers = config.parallel_config, config.model_config.num_layers
    stages, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size or 1
    offset = parallel.offset
    if offset is None or parallel.num_layer_list is not None:
        return
    share, rest = divmod(layers, stages * chunks)
    if has_too_many_stages(config):
        rule = f"{stages * chunks} chunks are more than the {layers} layers"
    elif not _has_shape(offset, stages, chunks):
        rule = f"must be a list of {stages} stages' numbers, or for each of {chunks} chunks such a list"
    elif (total := sum(map(sum, offset_rows(offset, chunks)))) != rest:
        rule = (
            f"adds up to {total}, must add up to the {rest} layers that {layers} are beyond {stages * chunks} x {share}"
        )
    elif share + min(map(min, offset_rows(offset, chunks))) < 1:
        rule = f"leaves a chunk without a layer: each has {share} and its offset"
    else:
        return
    yield Finding("--offset", offset, rule, "change it")


def _has_shape(offset: list[Any], stages: int, chunks: int) -> bool:
    rows = offset_rows(offset, chunks)
    return len(rows) == chunks and all(len(row) == stages for row in rows)


def _is_too_short(rows: list[list[int]], parallel: ParallelConfig) -> bool:
    """Whether a virtual stage other than the very first and the very last would hold nothing at all."""
    chunks, alone = parallel.virtual_pipeline_model_parallel_size or 1, parallel.standalone_embedding_stage
    ends = {(0, 0), (chunks - 1, len(rows[0]) - 1)} if len(rows) == chunks else set()
    empty = ends | {(chunk, 0) for chunk in range(len(rows)) if alone}
    return any(n < ((chunk, stage) not in empty) for chunk, row in enumerate(rows) for stage, n in enumerate(row))


def end_stages_leave_the_rest_even(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    ends = {
        "--decoder-first-pipeline-num-layers": parallel.decoder_first_pipeline_num_layers,
        "--decoder-last-pipeline-num-layers": parallel.decoder_last_pipeline_num_layers,
    }
    given = {flag: layers for flag, layers in ends.items() if layers is not None}
    if not given:
        return
    middle = parallel.pipeline_model_parallel_size - len(given) - parallel.standalone_embedding_stage
    rest = config.model_config.num_layers - sum(given.values())
    if middle < 0 or rest < middle or (rest % middle if middle else rest):
        yield Finding(
            " ".join((f"{flag} {layers}" for flag, layers in given.items())),
            None,
            f"leaves {rest} layers for {middle} stages, which must share them evenly, at least one each",
            "change it or --num-layers",
        )


def _has_too_many(config: Sections, parts: int) -> bool:
    """Whether other rules refuse so many stages or virtual stages: then nothing is laid out for each of them."""
    return parts > config.model_config.num_layers + 2  # embedding and output layer may count as layers


def has_too_many_stages(config: Sections) -> bool:
    """Whether other rules refuse so many virtual stages in all."""
    parallel = config.parallel_config
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    return _has_too_many(config, chunks * parallel.pipeline_model_parallel_size)


def chunks_divide(config: Sections) -> Iterator[Finding]:
    """Each virtual stage of a stage has equally many layers, unless a list says otherwise."""
    parallel, layers = config.parallel_config, config.model_config.num_layers
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    if (
        is_nested(parallel.num_layer_list)
        or parallel.offset is not None
        or _has_too_many(config, parallel.pipeline_model_parallel_size)
    ):
        return
    uneven = [budget for budget in stage_budgets(layers, parallel) if budget % chunks]
    if uneven and parallel.num_layer_list is not None:
        yield Finding(
            "--num-layer-list",
            parallel.num_layer_list,
            f"each number must be a multiple of the {chunks} virtual stages",
            "change it, or give a list for each of them",
        )
    elif uneven:
        yield _chunks(parallel).breaks(
            f"{chunks} virtual stages do not divide the {uneven[0]} layers of a stage (--num-layers {layers}, "
            f"--pipeline-model-parallel-size {parallel.pipeline_model_parallel_size})",
            "change one of them",
        )


def chunks_have_the_layers_asked_for(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    asked, chunks = parallel.num_layers_per_virtual_pipeline_stage, parallel.virtual_pipeline_model_parallel_size or 1
    if asked is None or _has_too_many(config, chunks * parallel.pipeline_model_parallel_size):
        return
    counts = [n for row in chunk_counts(config.model_config.num_layers, parallel) for n in row]
    if counts and max(counts) != asked:
        yield Finding(
            "--num-layers-per-virtual-pipeline-stage",
            asked,
            f"the rest of the layout makes virtual stages of {max(counts)} layers",
            "change it or leave it out",
        )


def noop_layers_exist(config: Sections) -> Iterator[Finding]:
    idle, layers = config.parallel_config.noop_layers or [], config.model_config.num_layers
    for layer in idle:
        if not 0 <= layer < layers:
            yield Finding("--noop-layers", layer, f"must be between 0 and --num-layers {layers} - 1", "remove it")
    if len(set(idle)) < len(idle):
        yield Finding("--noop-layers", ",".join(map(str, idle)), "names a layer twice", "remove one")
    if len(set(idle)) >= layers:
        yield Finding("--noop-layers", ",".join(map(str, idle)), "leaves no layer that does something", "remove one")


RULES = (
    schedule_fits,
    one_way_to_split,
    stages_have_layers,
    layer_list_fits,
    offset_fits,
    end_stages_leave_the_rest_even,
    chunks_divide,
    chunks_have_the_layers_asked_for,
    noop_layers_exist,
)
