"""Findings about modules to be recomputed or offloaded that depend on the parts of the model's layers."""

from collections.abc import Iterator

from parallel_core.blocks.layer_kinds import layer_of
from parallel_core.config import AllConfig
from parallel_core.config.recompute import LISTED
from parallel_core.config.rules.recompute import FLAGS
from parallel_core.findings import Finding
from parallel_core.partition import chunk_counts
from parallel_core.recompute.parts import LayerParts, is_within
from parallel_core.recompute.plan import wrong_settings


def recompute_findings(config: AllConfig) -> Iterator[Finding]:
    """Findings that depend on the decoder's layers: --recompute-modules that no layer has; lists by stage whose form
    does not fit the layers, or whose patterns are malformed or match no part (of collectives: no norm);
    --no-mp-comm-recompute with attention whose collectives always run again (latent, compressed); and with
    --fine-grained-activation-offloading qkv_linear among --offload-modules where no layer has it."""
    recompute = config.recompute_config
    is_listed = any(getattr(recompute, name) is not None for name in LISTED)
    of_linears = recompute.fine_grained_activation_offloading and "qkv_linear" in recompute.offload_modules
    if not (recompute.recompute_modules or is_listed or of_linears or not recompute.mp_comm_recompute):
        return  # laying out the layers takes time, and there may be many
    layers = _parts_of_layers(config)
    together = LayerParts.of_all(layers)
    for module in recompute.recompute_modules or ():
        if module not in together.flags:
            rule = f"is no module of this model, which has {', '.join(sorted(together.flags))}"
            yield Finding("--recompute-modules", module, rule, "leave it out")
    if is_listed:
        counts = chunk_counts(config.model_config.num_layers, config.parallel_config)
        yield from wrong_settings(recompute, counts, FLAGS, together)
    if not recompute.mp_comm_recompute and not all(map(_names_collectives, layers)):
        rule = "does not go with latent attention, whose collectives always run again"
        yield Finding("--no-mp-comm-recompute", None, rule, "leave one of them out")
    paths = [path for layer in layers for path in layer.collectives]
    if of_linears and not any(path.endswith("self_attention.linear_qkv") for path in paths):
        rule = "is no module of this model, whose attention has other linears"
        yield Finding("--offload-modules", "qkv_linear", rule, "leave it out")


def _names_collectives(layer: LayerParts) -> bool:
    """Whether each mixer of the layer, if it has one, names the linears whose collectives may be kept."""
    mixers = [part.name for part in layer.parts if part.name.split(".")[-1] == "self_attention"]
    return all(any(is_within(path, mixer) for path in layer.collectives) for mixer in mixers)


def _parts_of_layers(config: AllConfig) -> list[LayerParts]:
    skipped = config.parallel_config.noop_layers or ()
    numbers = (number for number in range(config.model_config.num_layers) if number not in skipped)
    return [layer_of(config.model_config, number).parts() for number in numbers]
