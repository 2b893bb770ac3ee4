"""Rules of keys and values that layers share."""

from collections.abc import Iterator

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.partition import chunk_layers


def shared_keys_fit(config: Sections) -> Iterator[Finding]:
    """Check cross-layer attention, if any: it needs ordinary attention without an output gate, no layer pattern, no
    multi-token prediction, no shortcut around experts and no noop layers, and each chunk begins with a layer that makes
    keys."""
    model, parallel = config.model_config, config.parallel_config
    if model.cla_share_factor == 1:
        return
    asked = f"--cla-share-factor {model.cla_share_factor}"
    for section, name in (
        (model.multi_latent_attention, "enabled"),
        (model.sparse_attention, "variant"),
        (model.compressed_attention, "ratios"),
        (model.hybrid, "layer_pattern"),
        (model.multi_token_prediction, "num_layers"),
        (model, "attention_output_gate"),
        (model.qk_clip, "enabled"),
        (config.moe_config, "moe_shortcut_connected"),
        (parallel, "noop_layers"),
    ):
        if getattr(section, name):
            yield section.clashes(name, f"{asked}: layers share the keys of plain attention")
    first = {chunk[0] for row in chunk_layers(model, parallel) for chunk in row if len(chunk)}
    for layer in sorted(number for number in first if model.shares_keys(number)):
        rule = f"would have layer {layer + 1}, with which a pipeline stage begins, take keys of the stage before"
        yield model.breaks("cla_share_factor", rule, "give each stage whole groups of so many layers")
