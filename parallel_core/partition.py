"""Layers to pipeline chunks: which stage owns which layers.

Layers are numbered in the order in which a micro-batch goes through the chunks (`schedules.Placement`).
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from parallel_core.schedules.actions import Placement


class PipelineSizes(Protocol):
    """The options of a ParallelConfig that distribute the layers over pipeline stages."""

    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    num_layers_per_virtual_pipeline_stage: int | None
    num_layer_list: list[int] | list[list[int]] | None
    offset: Any
    decoder_first_pipeline_num_layers: int | None
    decoder_last_pipeline_num_layers: int | None
    standalone_embedding_stage: bool
    account_for_embedding_in_pipeline_split: bool
    account_for_loss_in_pipeline_split: bool

    @property
    def placement(self) -> Placement:
        """The stage of each chunk of the model."""


class ModelSizes(Protocol):
    """The option of a ModelConfig that says how many layers there are."""

    num_layers: int


def chunk_layers(model_config: ModelSizes, parallel_config: PipelineSizes) -> list[list[range]]:
    """The layers, 0-based, of each chunk and stage: indexed [chunk][stage].

    A nested `--num-layer-list` says how many each has. With `offset` each chunk of each stage has an even share,
    rounded down, and its offset. With neither, a stage's layers (`stage_budgets`, which reads a plain list) are divided
    evenly over its chunks; where the embedding or the output layer counts as one of them, the first stage's first or
    the last stage's last chunk has one less. Layers that do nothing (`--noop-layers`) are counted and numbered as any
    other. Raises AssertionError if the chunks' layers do not add up to all layers.
    """
    counts = chunk_counts(model_config.num_layers, parallel_config)
    flat = [count for row in counts for count in row]
    assert sum(flat) == model_config.num_layers, f"{counts} for {model_config.num_layers} layers"
    placement = parallel_config.placement
    visited = [placement.place(virtual) for virtual in range(len(flat))]
    starts = accumulate((counts[chunk][stage] for stage, chunk in visited), initial=0)
    owned = {place: range(*ends) for place, ends in zip(visited, pairwise(starts), strict=True)}
    return [[owned[stage, chunk] for stage in range(placement.stages)] for chunk in range(placement.chunks)]


def chunk_counts(num_layers: int, parallel: PipelineSizes) -> list[list[int]]:
    """The number of layers of each chunk on each stage, by the rules of `chunk_layers`: indexed [chunk][stage]. Whether
    they add up to `num_layers` is not checked."""
    entries: Any = parallel.num_layer_list
    if is_nested(entries):
        return [list(row) for row in entries]
    chunks = parallel.virtual_pipeline_model_parallel_size or 1
    if parallel.offset is not None:
        share = num_layers // (chunks * parallel.pipeline_model_parallel_size)
        return [[share + extra for extra in row] for row in offset_rows(parallel.offset, chunks)]
    counts = [[budget // chunks for budget in stage_budgets(num_layers, parallel)] for _ in range(chunks)]
    if entries is None:
        counts[0][0] -= parallel.account_for_embedding_in_pipeline_split
        counts[-1][-1] -= parallel.account_for_loss_in_pipeline_split
    return counts


def offset_rows(offset: Any, chunks: int) -> list[list[int]]:
    """An `offset` (the layers that each stage adds to an even share) as a list for each chunk; a plain list is every
    chunk's."""
    return offset if is_nested(offset) else [offset] * chunks


def stage_budgets(num_layers: int, parallel: PipelineSizes) -> list[int]:
    """The number of layers of each stage, first to last.

    A `--num-layer-list`, which must be plain, says them. Else `fixed_stages` gives those of the first and last as far
    as it has them, and the others share evenly. A rest of r layers goes, one each, to the r of these others before
    their last one. Without a list, the embedding and the output layer are counted as a layer each with Megatron's
    --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split.
    """
    entries: Any = parallel.num_layer_list
    if entries is not None:
        return list(entries)
    budgets = fixed_stages(parallel)
    free = [stage for stage in range(parallel.pipeline_model_parallel_size) if stage not in budgets]
    counted = num_layers + parallel.account_for_embedding_in_pipeline_split
    counted += parallel.account_for_loss_in_pipeline_split - sum(budgets.values())
    share, rest = divmod(counted, len(free)) if free else (0, 0)
    heavier = free[:-1][::-1][:rest]
    budgets |= {stage: share + (stage in heavier) for stage in free}
    return [budgets[stage] for stage in sorted(budgets)]


def fixed_stages(parallel: PipelineSizes) -> dict[int, int]:
    """Stage -> its number of layers, of the first and the last stage as far as --decoder-first-pipeline-num-layers and
    --decoder-last-pipeline-num-layers give it; with --standalone-embedding-stage the first has 0. A single stage has
    the number of the last one, if that is given. --num-layer-list is not read."""
    last = parallel.decoder_last_pipeline_num_layers
    first = 0 if parallel.standalone_embedding_stage else parallel.decoder_first_pipeline_num_layers
    ends = ((0, first), (parallel.pipeline_model_parallel_size - 1, last))
    return {stage: layers for stage, layers in ends if layers is not None}


def virtual_stages(num_layers: int, parallel: PipelineSizes) -> int | None:
    """The number of chunks of a stage: the length of a nested `--num-layer-list`; without one, the largest of
    `stage_budgets` / `--num-layers-per-virtual-pipeline-stage`, rounded down; None without either.
    `virtual_pipeline_model_parallel_size` is not read."""
    if is_nested(parallel.num_layer_list):
        return len(parallel.num_layer_list or ())
    per_chunk = parallel.num_layers_per_virtual_pipeline_stage
    return None if per_chunk is None else max(stage_budgets(num_layers, parallel), default=0) // per_chunk


def is_nested(num_layer_list: Sequence[Any] | None) -> bool:
    """Whether any entry is itself a list, as where there is one for each chunk; False for None."""
    return any(isinstance(entry, list) for entry in num_layer_list or ())
