"""Rules of the layout of ranks: the division of sequences, the transport, and padding for tensor parallelism."""

from collections.abc import Iterator

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.sizes import HYBRID, RING, ULYSSES, ulysses_degree_divides, ulysses_degree_is_read


def sequence_divides(config: Sections) -> Iterator[Finding]:
    parallel, model = config.parallel_config, config.model_config
    tensor, context = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    purpose = _what_tensor_ranks_share(config)
    twice = context > 1 and parallel.context_parallel_algo != ULYSSES
    held = model.seq_length // context
    if model.seq_length % (context * (2 if twice else 1)):
        rule = f"must be a multiple of {'twice ' if twice else ''}--context-parallel-size {context}"
        yield model.breaks("seq_length", rule)
    elif purpose and held % tensor:
        rule = f"must be a multiple of --tensor-model-parallel-size {tensor}{purpose}"
        yield model.breaks("seq_length", f"what a context-parallel rank holds, {held}, {rule}")


def _what_tensor_ranks_share(config: Sections) -> str:
    """The reason why tensor-parallel ranks must have equal parts of a sequence, as the end of a sentence; "": they need
    not."""
    if config.parallel_config.sequence_parallel:
        return " with --sequence-parallel"
    return ", whose ranks share the way to the experts" if config.moe_config.num_experts is not None else ""


def transport_is_there(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    if parallel.collectives == "native" and parallel.device_target == "CPU":
        yield parallel.breaks("collectives", "HCCL connects Ascends alone", "leave it out")


def ulysses_divides(config: Sections) -> Iterator[Finding]:
    parallel, model = config.parallel_config, config.model_config
    size, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    if size == 1 or parallel.context_parallel_algo == RING:
        return
    degree = parallel.ulysses_degree_in_cp if parallel.context_parallel_algo == HYBRID else size
    if degree is not None and size % degree == 0 and model.num_attention_heads % (tensor * degree):
        rule = f"must be a multiple of --tensor-model-parallel-size {tensor} x ulysses degree {degree}"
        yield model.breaks("num_attention_heads", rule)


def hybrid_is_both(config: Sections) -> Iterator[Finding]:
    parallel, size = config.parallel_config, config.parallel_config.context_parallel_size
    if size > 1 and parallel.context_parallel_algo == HYBRID and parallel.ulysses_degree_in_cp in (1, size):
        rule = f"must be between 1 and --context-parallel-size {size}: that is a ring or Ulysses alone"
        yield parallel.breaks("ulysses_degree_in_cp", rule, f"change it or use {ULYSSES} or {RING}")


def sizes_of_context_parallelism(config: Sections) -> Iterator[Finding]:
    yield from ulysses_degree_divides(config.parallel_config)
    yield from ulysses_degree_is_read(config.parallel_config)


def padding_stays_zero(config: Sections) -> Iterator[Finding]:
    """Check --unaligned-linear where ranks do not divide a size (`Sections.undivided`): it does not go with options
    that would read padding or make it other than zero. These are muon and, with adapters, --lora-dropout; and where
    ranks do not divide key/value heads, the attention variant dsa and --compress-ratios."""
    model, parallel = config.model_config, config.parallel_config
    pads_heads, pads = "heads" in config.undivided, bool(config.undivided)
    sparse, compressed = model.sparse_attention.enabled, model.compressed_attention.enabled
    for other, holds, why in (
        ("--optimizer muon", pads and config.optimizer_config.optimizer_type == "muon", "its steps follow from shapes"),
        ("--lora-dropout", pads and config.lora_config.use_lora and config.lora_config.lora_dropout, "it sees widths"),
        ("--experimental-attention-variant dsa", pads_heads and sparse, "an indexer learns from all heads together"),
        ("--compress-ratios", pads_heads and compressed, "its groups are of whole heads"),
    ):
        if parallel.unaligned_linear and holds:
            rule = f"{other} where --tensor-model-parallel-size does not divide {', '.join(config.undivided)}: {why}"
            yield parallel.clashes("unaligned_linear", rule, "change the sizes or leave one of them out")
