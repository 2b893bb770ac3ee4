"""Rules of how a sequence is split: context and sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.sizes import HYBRID, RING, ULYSSES, ulysses_degree_divides, ulysses_degree_is_read


def sequence_divides(config: Sections) -> Iterator[Finding]:
    parallel, length = config.parallel_config, config.model_config.seq_length
    tensor, context = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    purpose = _what_tensor_ranks_share(config)
    ring = context > 1 and parallel.context_parallel_algo != ULYSSES
    pieces = context * (2 if ring else 1)
    if length % pieces:
        yield Finding(
            "--seq-length",
            length,
            f"must be a multiple of {('twice ' if ring else '')}--context-parallel-size {context}",
            "change one of them",
        )
    elif purpose and length // context % tensor:
        yield Finding(
            "--seq-length",
            length,
            f"what a context-parallel rank holds, {length // context}, must be a multiple of "
            f"--tensor-model-parallel-size {tensor}{purpose}",
            "change one of them",
        )


def _what_tensor_ranks_share(config: Sections) -> str:
    """Why tensor-parallel ranks have equal parts of a sequence; empty if they don't."""
    if config.parallel_config.sequence_parallel:
        return " with --sequence-parallel"
    return ", whose ranks share the way to the experts" if config.moe_config.num_experts is not None else ""


def transport_is_there(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    if parallel.collectives == "native" and parallel.device_target == "CPU":
        yield Finding("--collectives", "native", "HCCL connects Ascends alone", "leave it out")


def ulysses_divides(config: Sections) -> Iterator[Finding]:
    parallel, heads = config.parallel_config, config.model_config.num_attention_heads
    size, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    if size == 1 or parallel.context_parallel_algo == RING:
        return
    degree = parallel.ulysses_degree_in_cp if parallel.context_parallel_algo == HYBRID else size
    if degree is not None and size % degree == 0 and heads % (tensor * degree):
        yield Finding(
            "--num-attention-heads",
            heads,
            f"must be a multiple of --tensor-model-parallel-size {tensor} x ulysses degree {degree}",
            "change one of them",
        )


def hybrid_is_both(config: Sections) -> Iterator[Finding]:
    parallel = config.parallel_config
    size, degree = parallel.context_parallel_size, parallel.ulysses_degree_in_cp
    if size > 1 and parallel.context_parallel_algo == HYBRID and degree in (1, size):
        rule = f"must be between 1 and --context-parallel-size {size}: that is a ring or Ulysses alone"
        yield Finding("--ulysses-degree-in-cp", degree, rule, f"change it or use {ULYSSES} or {RING}")


def sizes_of_context_parallelism(config: Sections) -> Iterator[Finding]:
    yield from ulysses_degree_divides(config.parallel_config)
    yield from ulysses_degree_is_read(config.parallel_config)


RULES = (
    sequence_divides,
    transport_is_there,
    ulysses_divides,
    hybrid_is_both,
    sizes_of_context_parallelism,
)
