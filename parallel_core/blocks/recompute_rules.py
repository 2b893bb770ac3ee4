"""What is wrong with the modules that are to be recomputed: the model's layers say which there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallel_core.blocks.layer import layer_of
from parallel_core.config.recompute import LISTED
from parallel_core.config.rules.recompute import FLAGS
from parallel_core.findings import Finding
from parallel_core.partition import chunk_counts
from parallel_core.recompute import LayerParts, wrong_settings

if TYPE_CHECKING:
    from parallel_core.config import AllConfig

QKV = "self_attention.linear_qkv"


def recompute_findings(config: AllConfig) -> Iterator[Finding]:
    """Modules that no layer has, and collectives that cannot be kept."""
    recompute, layers = config.recompute_config, _parts_of_layers(config)
    together = LayerParts.of_all(layers)
    for module in recompute.recompute_modules or ():
        if module not in together.flags:
            rule = f"is no module of this model, which has {', '.join(sorted(together.flags))}"
            yield Finding("--recompute-modules", module, rule, "leave it out")
    if any(getattr(recompute, name) is not None for name in LISTED):
        counts = chunk_counts(config.model_config.num_layers, config.parallel_config)
        yield from wrong_settings(recompute, counts, FLAGS, together)
    if any(layer.matching("self_attention") and QKV not in layer.collectives for layer in layers):
        yield from _names_linear_qkv(config)


def _names_linear_qkv(config: AllConfig) -> Iterator[Finding]:
    """Two settings do, which some attention does not have."""
    recompute, rule = config.recompute_config, "needs linear_qkv, and attention of this model has other linears"
    if not recompute.mp_comm_recompute:
        yield Finding("--no-mp-comm-recompute", None, rule, "leave one of them out")
    if recompute.fine_grained_activation_offloading and "qkv_linear" in recompute.offload_modules:
        yield Finding("--offload-modules", "qkv_linear", rule, "leave it out")


def _parts_of_layers(config: AllConfig) -> list[LayerParts]:
    skipped = config.parallel_config.noop_layers or ()
    numbers = (number for number in range(config.model_config.num_layers) if number not in skipped)
    return [layer_of(config.model_config, number).parts() for number in numbers]
