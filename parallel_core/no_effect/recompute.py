"""Conditions under which options of recomputation, swapping and offloading of activations have no effect, and the
reasons."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from parallel_core.blocks import layer_of
from parallel_core.config.all import AllConfig
from parallel_core.config.recompute import LISTED, RecomputeConfig
from parallel_core.config.tree import FLAG_OF, OPTIONS, path_of
from parallel_core.no_effect.row import Idle, below, needs, where
from parallel_core.partition import chunk_counts, chunk_layers
from parallel_core.recompute.plan import RecomputePlan
from parallel_core.recompute.tables import beyond


def _groups_no_layers(config: AllConfig) -> bool:
    """Whether --recompute-num-layers and --recompute-method group no layers: neither full recompute is asked for, nor a
    list by stage with the method uniform."""
    recompute = config.recompute_config
    by_stage = recompute.recompute is not None and recompute.recompute_method == "uniform"
    return recompute.recompute_granularity is None and not by_stage


def _computed_again(config: AllConfig, settings: RecomputeConfig) -> list[Any]:
    """For each layer, chunk by chunk and stage by stage, the effect of the settings: whether it runs again whole, its
    modules that run again (also those that a CPU recomputes unasked), kept collectives, offloaded activations, and
    sliced inputs."""
    parallel, numbers = config.parallel_config, chunk_layers(config.model_config, config.parallel_config)
    plan = RecomputePlan.of(settings, [[len(layers) for layers in row] for row in numbers])
    is_cut = parallel.tensor_model_parallel_size > 1
    slices = is_cut and plan.slices_inputs and not parallel.sequence_parallel
    found = []
    for chunk, row in enumerate(numbers):
        for stage, layers in enumerate(row):
            for index, number in enumerate(layers):
                there = layer_of(config.model_config, number).parts()
                layer = plan.layer(stage, chunk, index, there)
                if parallel.is_on_cpu and parallel.drops_outputs_on_cpu:
                    layer = layer.dropping_outputs(there, norms=True)
                kept = is_cut and layer.kept_collectives
                offloaded = (plan.smallest_offloaded, *layer.offloaded) if layer.offloaded else ()
                found.append((layer.full, {*layer.modules}, kept, offloaded, layer.full and slices))
    return found


def _is_same_without(name: str) -> Callable[[AllConfig], bool]:
    """The condition that the recompute option `name`, set to its default, leaves the same layers, modules and
    collectives to be computed again."""
    default = OPTIONS[path_of(name)].default

    def is_same(config: AllConfig) -> bool:
        asked = config.recompute_config
        return _computed_again(config, asked) == _computed_again(config, replace(asked, **{name: default}))

    return is_same


def beyond_the_stages(config: AllConfig) -> Iterator[str]:
    """For the options `LISTED`, a sentence for each number in a list by stage that exceeds the layers of its stage or
    chunk; lists that are for some modules alone count, too. The config must have no findings."""
    counts = chunk_counts(config.model_config.num_layers, config.parallel_config)
    for name in LISTED:
        path = path_of(f"recompute_config.{name}")
        for clause in beyond(getattr(config.recompute_config, name), counts):
            yield f"{config.named.get(path, FLAG_OF[path])}: {clause}: the rest asks for nothing"


_ASKING = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute")

ROWS = (
    needs("swap_attention", "swap_modules"),
    needs("fine_grained_activation_offloading", "offload_modules min_offloaded_tensor_size"),
    needs("recompute_norm", "recompute_norm_num_layers"),
    needs("recompute_activation_function", "recompute_activation_function_num_layers"),
    needs("multi_latent_attention.enabled", "recompute_mla_up_proj"),
    Idle("recompute_method recompute_num_layers", _groups_no_layers, "needs --recompute-granularity full"),
    needs("recompute_granularity", "recompute_modules", "selective"),
    needs("virtual_pipeline_model_parallel_size", "enable_recompute_layers_per_pp_rank"),
    Idle(
        "select_comm_recompute select_comm_recompute_exclude",
        where("mp_comm_recompute", True),
        "needs --no-mp-comm-recompute: all collectives are run again",
    ),
    *(
        Idle(
            name,
            _is_same_without(name),
            "without this flag the same is computed again, and the same kept on the device",
        )
        for name in below(RecomputeConfig, *_ASKING).split()
    ),
)
