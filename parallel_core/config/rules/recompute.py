"""Rules of recomputation in the backward pass, and of activations in host memory."""

from collections.abc import Iterator

from parallel_core.config.recompute import LISTED
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.recompute.offload import wrong_offload
from parallel_core.recompute.plan import BY_STAGE


def offloaded_modules_exist(config: Sections) -> Iterator[Finding]:
    yield from wrong_offload(config.recompute_config, config.model_config.num_layers)


def recomputed_norms_feed_linears(config: Sections) -> Iterator[Finding]:
    recompute = config.recompute_config
    if not config.model_config.apply_residual_connection_post_norm:
        return
    rule = "saves nothing with --apply-residual-connection-post-layernorm, where a norm's result is kept in any case"
    if recompute.recompute_norm:
        yield recompute.breaks("recompute_norm", rule, "leave one of them out")
    elif "layernorm" in (recompute.recompute_modules or ()):
        yield recompute.breaks("recompute_modules", rule, "leave one of them out", "layernorm")


def recompute_is_whole(config: Sections) -> Iterator[Finding]:
    recompute = config.recompute_config
    if recompute.recompute_granularity == "full" and recompute.recompute_method is None:
        yield recompute.needs("recompute_granularity", "--recompute-method uniform or block")
    if recompute.recompute_granularity == "full" and recompute.recompute_num_layers is None:
        yield recompute.needs("recompute_granularity", "--recompute-num-layers")
    for name in ("recompute_method", "recompute_num_layers"):
        if recompute.recompute_granularity == "selective" and getattr(recompute, name) is not None:
            rule = "goes with --recompute-granularity full, not with selective"
            yield recompute.breaks(name, rule, "leave one of them out")
    is_uniform = recompute.recompute_granularity == "full" and recompute.recompute_method == "uniform"
    if is_uniform and recompute.recompute_num_layers == 0:
        rule = "must be at least 1 with --recompute-method uniform"
        yield recompute.breaks("recompute_num_layers", rule, "raise it")


FLAGS = {name: f"--{name.replace('_', '-')}" for name in LISTED}


def recompute_has_one_notation(config: Sections) -> Iterator[Finding]:
    recompute = config.recompute_config
    given = [name for name in BY_STAGE if getattr(recompute, name) is not None]
    if recompute.recompute_granularity is not None and given:
        yield recompute.clashes("recompute_granularity", f"{FLAGS[given[0]]}, which says layers by stage")
    if recompute.enable_recompute_layers_per_pp_rank and recompute.recompute_method == "uniform":
        rule = "goes with --recompute-method block, not with uniform"
        yield recompute.breaks("enable_recompute_layers_per_pp_rank", rule, "leave one of them out")
