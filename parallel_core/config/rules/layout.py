"""Rules of how a sequence is split: context and sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.sections import Sections
from parallel_core.findings import Finding


def sequence_divides(config: Sections) -> Iterator[Finding]:
    parallel, length = config.parallel_config, config.model_config.seq_length
    tensor, context = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    ring = context > 1 and parallel.context_parallel_algo != "ulysses_cp_algo"
    pieces = context * (2 if ring else 1)
    if length % pieces:
        yield Finding(
            "--seq-length",
            length,
            f"must be a multiple of {('twice ' if ring else '')}--context-parallel-size {context}",
            "change one of them",
        )
    elif parallel.sequence_parallel and length // context % tensor:
        yield Finding(
            "--seq-length",
            length,
            f"what a context-parallel rank holds, {length // context}, must be a multiple of "
            f"--tensor-model-parallel-size {tensor} with --sequence-parallel",
            "change one of them",
        )


def ulysses_divides(config: Sections) -> Iterator[Finding]:
    parallel, heads = config.parallel_config, config.model_config.num_attention_heads
    context, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    if context == 1 or parallel.context_parallel_algo == "megatron_cp_algo":
        return
    degree = context
    if parallel.context_parallel_algo == "hybrid_cp_algo":
        if parallel.ulysses_degree_in_cp is None:
            yield Finding("--context-parallel-algo", "hybrid_cp_algo", "needs --ulysses-degree-in-cp", "add it")
            return
        degree = parallel.ulysses_degree_in_cp
        if context % degree or degree == context or degree == 1:
            yield Finding(
                "--ulysses-degree-in-cp",
                degree,
                f"must be a proper divisor of --context-parallel-size {context}",
                "change it or use ulysses_cp_algo or megatron_cp_algo",
            )
    if heads % (tensor * degree):
        yield Finding(
            "--num-attention-heads",
            heads,
            f"must be a multiple of --tensor-model-parallel-size {tensor} x ulysses degree {degree}",
            "change one of them",
        )


def ulysses_degree_is_read(config: Sections) -> Iterator[Finding]:
    """By the hybrid, or by Ulysses in scripts that ask for it by both: MindSpeed reads the algorithm alone there."""
    parallel = config.parallel_config
    degree, algorithm = parallel.ulysses_degree_in_cp, parallel.context_parallel_algo
    if parallel.context_parallel_size > 1 and degree is not None and algorithm == "megatron_cp_algo":
        yield Finding(
            "--ulysses-degree-in-cp",
            degree,
            f"{algorithm} has no such degree",
            "add --context-parallel-algo hybrid_cp_algo or leave this out",
        )


RULES = (
    sequence_divides,
    ulysses_divides,
    ulysses_degree_is_read,
)
