"""Rules of what is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.recompute import LISTED
from parallel_core.config.rules.moe import layer_pattern_fits
from parallel_core.config.rules.pipeline import has_too_many_stages
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.partition import chunk_counts
from parallel_core.recompute import BY_STAGE, MEGATRON_MODULES, LayerKind, modules_of, wrong_offload, wrong_settings


def recompute_is_whole(config: Sections) -> Iterator[Finding]:
    recompute = config.recompute_config
    if recompute.recompute_granularity == "full" and recompute.recompute_method is None:
        yield Finding("--recompute-granularity", "full", "needs --recompute-method uniform or block", "add it")
    if recompute.recompute_granularity == "full" and recompute.recompute_num_layers is None:
        yield Finding("--recompute-granularity", "full", "needs --recompute-num-layers", "add it")
    if recompute.recompute_granularity == "selective" and recompute.recompute_method is not None:
        yield Finding(
            "--recompute-method",
            recompute.recompute_method,
            "goes with --recompute-granularity full, not with selective",
            "leave one of them out",
        )


def recompute_covers_layers(config: Sections) -> Iterator[Finding]:
    recompute, count = config.recompute_config, config.recompute_config.recompute_num_layers
    if recompute.recompute_granularity == "selective" and count is not None:
        yield Finding(
            "--recompute-num-layers",
            count,
            "goes with --recompute-granularity full, not with selective",
            "leave one of them out",
        )
    if recompute.recompute_granularity == "full" and recompute.recompute_method == "uniform" and count == 0:
        yield Finding("--recompute-num-layers", 0, "must be at least 1 with --recompute-method uniform", "raise it")


FLAGS = {name: f"--{name.replace('_', '-')}" for name in LISTED}


def recompute_has_one_notation(config: Sections) -> Iterator[Finding]:
    recompute = config.recompute_config
    given = [name for name in BY_STAGE if getattr(recompute, name) is not None]
    if recompute.recompute_granularity is not None and given:
        yield Finding(
            "--recompute-granularity",
            recompute.recompute_granularity,
            f"does not go with {FLAGS[given[0]]}, which says layers by stage",
            "leave one of them out",
        )
    if recompute.enable_recompute_layers_per_pp_rank and recompute.recompute_method == "uniform":
        yield Finding(
            "--enable-recompute-layers-per-pp-rank",
            None,
            "goes with --recompute-method block, not with uniform",
            "leave one of them out",
        )


def recompute_modules_exist(config: Sections) -> Iterator[Finding]:
    """Of experts and latent attention where the model has these; one that has none has the modules of a dense layer."""
    model, experts = config.model_config, config.moe_config.num_experts is not None
    there = {*MEGATRON_MODULES} - (set() if experts else {"moe_act", "moe", "shared_experts"})
    there -= {"shared_experts"} if config.moe_config.moe_shared_expert_intermediate_size is None else set()
    there -= set() if model.multi_latent_attention.enabled else {"mla_up_proj"}
    for module in config.recompute_config.recompute_modules or ():
        if module not in there:
            rule = f"is no module of this model, which has {', '.join(sorted(there))}"
            yield Finding("--recompute-modules", module, rule, "leave it out")


def latent_attention_has_no_first_linear(config: Sections) -> Iterator[Finding]:
    """It has no linear_qkv, which two settings name."""
    recompute = config.recompute_config
    if not config.model_config.multi_latent_attention.enabled:
        return
    rule = "does not go with --multi-latent-attention, whose linears are others"
    if not recompute.mp_comm_recompute:
        yield Finding("--no-mp-comm-recompute", None, rule, "leave one of them out")
    if recompute.fine_grained_activation_offloading and "qkv_linear" in recompute.offload_modules:
        yield Finding("--offload-modules", "qkv_linear", rule, "leave it out")


def recompute_lists_fit(config: Sections) -> Iterator[Finding]:
    """Lists by stage are judged where the layers of the stages are right themselves."""
    recompute, layers = config.recompute_config, config.model_config.num_layers
    if all(getattr(recompute, name) is None for name in LISTED) or has_too_many_stages(config):
        return
    counts = chunk_counts(layers, config.parallel_config)
    if sum(map(sum, counts)) != layers or any(layer_pattern_fits(config)):
        return
    yield from wrong_settings(recompute, counts, FLAGS, _modules_of_layers(config))


def _modules_of_layers(config: Sections) -> tuple[str, ...]:
    moe, latent = config.moe_config, config.model_config.multi_latent_attention.enabled
    numbers = range(config.model_config.num_layers)
    there = (number for number in numbers if number not in (config.parallel_config.noop_layers or ()))
    return modules_of(LayerKind.of(moe, latent, number) for number in there)


def recomputed_norms_feed_linears(config: Sections) -> Iterator[Finding]:
    model, recompute = config.model_config, config.recompute_config
    if not model.apply_residual_connection_post_norm:
        return
    if recompute.recompute_norm or "layernorm" in (recompute.recompute_modules or ()):
        yield Finding(
            "--recompute-norm" if recompute.recompute_norm else "--recompute-modules",
            None if recompute.recompute_norm else "layernorm",
            "saves nothing with --apply-residual-connection-post-layernorm, where a norm's result is kept in any case",
            "leave one of them out",
        )


def offloaded_modules_exist(config: Sections) -> Iterator[Finding]:
    yield from wrong_offload(config.recompute_config, config.model_config.num_layers)


RULES = (
    offloaded_modules_exist,
    recomputed_norms_feed_linears,
    recompute_is_whole,
    recompute_covers_layers,
    recompute_has_one_notation,
    recompute_modules_exist,
    recompute_lists_fit,
    latent_attention_has_no_first_linear,
)
