"""Rules of what is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.recompute import LISTED
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.recompute import BY_STAGE, wrong_offload


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
)
