"""Findings about the linears that --lora-target-modules names, which take the whole model to tell."""

from collections.abc import Iterator

from parallel_core.blocks.adapters import unlike_experts
from parallel_core.blocks.compressed_attention import GroupedLinear
from parallel_core.blocks.experts import ExpertLinear
from parallel_core.blocks.language_model import stage_chunks
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.linears import linears
from parallel_core.config import AllConfig, ModelConfig
from parallel_core.config.lora import names
from parallel_core.findings import Finding


def adapter_findings(config: AllConfig) -> Iterator[Finding]:
    """Findings about adapters, none without LoRA: patterns that name no linear, cells whose linears have no adapter, a
    pipeline stage that would train nothing while another trains, experts of one layer with different adapters, and
    dropout where linears of experts, or in groups, are named."""
    if not config.lora_config.use_lora:
        return
    lora, stages = config.lora_config, _linears_of_stages(config.model_config)
    paths = [path for stage in stages for path in stage]
    ends = ", ".join(sorted({path.rpartition(".")[2] for path in paths}))
    for pattern in (*(lora.target_modules or ()), *(cell["cell"] for cell in lora.cells or ())):
        if not any(names(pattern, path) for path in paths):
            yield Finding("--lora-target-modules", pattern, "names no linear of the model", f"it has {ends}")
    for pattern in (cell["cell"] for cell in lora.cells or ()):
        named = [linear for stage in stages for path, linear in stage.items() if names(pattern, path)]
        if named and not any(linear.adapter for linear in named):
            rule = "names linears that get no adapter, since --lora-target-modules does not name them"
            yield Finding("--lora-target-cells", pattern, rule, "name them there, too")
    adapted = [[linear for linear in stage.values() if linear.adapter] for stage in stages]
    bare = [number for number, found in enumerate(adapted) if not found]
    if bare and any(adapted):
        rule = f"leaves nothing to train to pipeline stage {bare[0]}"
        fix = "name linears of all stages" if stages[bare[0]] else "give it a layer"
        yield Finding("--lora-target-modules", " ".join(lora.target_modules or ()), rule, fix)
    apart = next((path for stage in stages for path in unlike_experts(stage, config.model_config)), None)
    if apart is not None:
        rule = f"gives {apart} another adapter than the first expert of its layer has"
        yield Finding("--lora-target-modules", " ".join(lora.target_modules or ()), rule, "name all experts alike")
    parts = ExpertLinear, GroupedLinear
    if lora.lora_dropout and any(isinstance(linear, parts) for found in adapted for linear in found):
        rule = "is not available for linears of experts or groups: where a token stands there depends on the layout"
        yield Finding("--lora-dropout", lora.lora_dropout, rule, "leave it out, or name other linears")


def _linears_of_stages(config: ModelConfig) -> list[dict[str, Linear]]:
    """For each pipeline stage the linears that can have an adapter, by their paths."""
    stages = range(config.parallel_config.pipeline_model_parallel_size)
    found = []
    for chunks in (stage_chunks(config, stage) for stage in stages):
        parts = [(name, part) for chunk in chunks for name, part in (("decoder", chunk.decoder), ("mtp", chunk.mtp))]
        found.append({path: linear for name, part in parts if part for path, linear in linears(part, name)})
    return found
