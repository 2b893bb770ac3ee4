"""The parallel layouts of a job as values: those that a search tries, their flags, and single changes of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product as combinations

from parallel_core.config import AllConfig

SELECTIVE = ("--recompute-granularity", "selective")
WHOLE = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
RECOMPUTE: dict[str, tuple[str, ...]] = {
    "none": (),
    "layernorm": (*SELECTIVE, "--recompute-modules", "layernorm"),
    "moe_act": (*SELECTIVE, "--recompute-modules", "moe_act"),
    "selective": SELECTIVE,
    "mlp": (*SELECTIVE, "--recompute-modules", "mlp"),
    "core_attn mlp": (*SELECTIVE, "--recompute-modules", "core_attn", "mlp"),
    "moe": (*SELECTIVE, "--recompute-modules", "moe"),
    "core_attn moe": (*SELECTIVE, "--recompute-modules", "core_attn", "moe"),
    "full": WHOLE,
}
"""Name of a choice of recomputation -> its flags, from the least recomputed to the most; `selective` is attention's
core alone."""
OF_EXPERTS = ("moe_act", "moe", "core_attn moe")
ZERO_STAGES = {0: (), 1: ("--use-distributed-optimizer",), 2: ("--zero-stage", "2"), 3: ("--zero-stage", "3")}
REPLACED = (
    "--tensor-model-parallel-size", "--sequence-parallel", "--pipeline-model-parallel-size", "--context-parallel-size",
    "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
    "--virtual-pipeline-model-parallel-size", "--pipeline-schedule", "--expert-model-parallel-size",
    "--expert-tensor-parallel-size", "--micro-batch-size", "--use-distributed-optimizer", "--zero-stage",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
    "--recompute-activations", "--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--microbatch-group-size-per-virtual-pipeline-stage",
)  # fmt: skip
"""Flags of a script that a suggested layout replaces."""


@dataclass(frozen=True)
class Layout:
    """A parallel configuration as --suggest searches it: numbers of ranks (`tensor`, `pipeline`, `context`, `expert`),
    chunks of a stage (`virtual`), sequences of a micro-batch, a key of `RECOMPUTE`, stage of ZeRO."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    recompute: str = "none"
    zero: int = 0
    """Stage of ZeRO: 1 cuts the optimizer's states over the replicas, 2 gradients as well, 3 weights as well."""

    def flags(self) -> list[str]:
        """The words of a command line that ask for the layout, with several tensor-parallel ranks also for sequence
        parallelism."""
        sizes = {
            "--tensor-model-parallel-size": self.tensor,
            "--pipeline-model-parallel-size": self.pipeline,
            "--num-virtual-stages-per-pipeline-rank": self.virtual,
            "--context-parallel-size": self.context,
            "--expert-model-parallel-size": self.expert,
        }
        words = [word for flag, size in sizes.items() if size > 1 for word in (flag, str(size))]
        words += ["--sequence-parallel"] * (self.tensor > 1) + ["--micro-batch-size", str(self.micro_batch)]
        return [*words, *RECOMPUTE[self.recompute], *ZERO_STAGES[self.zero]]

    @property
    def bare(self) -> Layout:
        """The layout without recomputation and without ZeRO."""
        return replace(self, recompute="none", zero=0)

    def changed(self, other: Layout) -> list[str]:
        """Names of the fields in which this layout and another differ."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]


def layout_of(config: AllConfig) -> Layout:
    """The degrees, the micro-batch's size, the recomputation (by --recompute-granularity) and the stage of ZeRO of a
    configuration. Full recomputation counts as "full" whatever its method and number of layers, a selective one of
    modules that no key of `RECOMPUTE` has as "selective"."""
    parallel = config.parallel_config
    return Layout(
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        parallel.virtual_pipeline_model_parallel_size or 1,
        parallel.context_parallel_size,
        parallel.expert_model_parallel_size,
        config.dataset_config.batch_size,
        _recompute_of(config),
        config.training_config.gradient.zero_stage,
    )


def _recompute_of(config: AllConfig) -> str:
    asked = config.model_config.recompute_config
    if asked.recompute_granularity != "selective":
        return asked.recompute_granularity or "none"
    named = " ".join(sorted(asked.recompute_modules or ()))
    return named if named in RECOMPUTE else "selective"


def without_layout(argv: Sequence[str]) -> list[str]:
    """A script's arguments without the flags that a layout replaces, and their values."""
    return without(argv, REPLACED)


def without(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Arguments without these flags and the words behind them, up to the next word that begins with `--`."""
    kept, dropping = [], False
    for word in argv:
        if word.startswith("--"):
            dropping = word.partition("=")[0] in flags
        if not dropping:
            kept.append(word)
    return kept


def all_layouts(config: AllConfig, world_size: int) -> Iterator[Layout]:
    """Layouts, legal or not, whose degrees (powers of two, but for pipeline stages) divide what they share: heads,
    layers, experts, `world_size` devices and the last global batch size; with micro-batches of 1, 2, 4, 8, one chunk on
    a stage, or up to 4 where there are several stages and their number divides that of micro-batches, and each choice
    of recomputation (those of experts only if the model has experts). ZeRO's stages are 1, 2, 3; with a single replica,
    context-parallel ranks counted as replicas, 0 alone. Context parallelism leaves a rank 4096 tokens of a sequence or
    more."""
    model, experts, batch = config.model_config, config.moe_config.num_experts or 1, config.batch_sizes.final
    tensors = [size for size in powers(world_size) if model.num_attention_heads % size == 0]
    contexts = [1, *(size for size in powers(world_size) if size > 1 and model.seq_length // size >= 4096)]
    stages = [size for size in _divisors(model.num_layers) if world_size % size == 0]
    for tensor, context, pipeline, expert in combinations(tensors, contexts, stages, powers(experts)):
        shared = tensor * context * pipeline
        if world_size % shared or experts % expert or (world_size // pipeline) % expert:
            continue
        replicas = world_size // shared
        recomputes = [name for name in RECOMPUTE if config.moe_config.num_experts or name not in OF_EXPERTS]
        stages_of_zero = (1, 2, 3) if replicas * context > 1 else (0,)
        for micro_batch, recompute, zero in combinations((1, 2, 4, 8), recomputes, stages_of_zero):
            if batch % (replicas * micro_batch):
                continue
            count = batch // (replicas * micro_batch)
            for virtual in _virtual(model.num_layers, pipeline, count):
                yield Layout(tensor, pipeline, virtual, context, expert, micro_batch, recompute, zero)


def _virtual(layers: int, pipeline: int, micro_batches: int) -> Iterator[int]:
    yield 1
    if pipeline > 1 and micro_batches % pipeline == 0:
        yield from (chunks for chunks in _divisors(layers // pipeline) if 1 < chunks <= 4)


def neighbours(layout: Layout, everything: Sequence[Layout]) -> list[Layout]:
    """The layouts among `everything` that differ from `layout` in one field, or in one field and in the stage of ZeRO,
    which is 0 in the other layout, or 1 where `layout` has 0."""
    found = []
    for other in everything:
        changed = other.changed(layout)
        if len(changed) == 2 and "zero" in changed and min(other.zero, layout.zero) == 0 and other.zero <= 1:
            changed.remove("zero")
        found += [other] * (len(changed) == 1)
    return found


def powers(limit: int) -> list[int]:
    """The powers of two from 1 to `limit`."""
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
