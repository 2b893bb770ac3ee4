"""Every command-line flag of Megatron-LM, MindSpeed and MindSpeed-LLM, as data: one module per argument group."""

from mapping.flags import (
    always_on,
    architectures,
    checkpoint_formats,
    checkpointing,
    communication,
    data,
    inference,
    instruction,
    kernels,
    latent,
    logs,
    lora,
    low_precision,
    memory,
    model,
    moe,
    old_names,
    operations,
    optimizer,
    other_optimizers,
    other_parallelism,
    overlap,
    pai,
    parallel,
    positions,
    post_training,
    precision,
    preprocessing,
    profiling,
    pynative,
    sharding,
    training,
    vision,
)
from mapping.flags.flag import IGNORED, MAPPED, REFUSED, Flag

GROUPS = (
    model,
    positions,
    latent,
    moe,
    precision,
    training,
    optimizer,
    parallel,
    sharding,
    data,
    instruction,
    checkpointing,
    profiling,
    lora,
    pynative,
    kernels,
    memory,
    overlap,
    communication,
    logs,
    always_on,
    checkpoint_formats,
    operations,
    preprocessing,
    other_optimizers,
    other_parallelism,
    low_precision,
    architectures,
    post_training,
    inference,
    vision,
    pai,
    old_names,
)
"""Modules of rows: first what acts, then what is ignored, then what is refused."""

ROWS: tuple[Flag, ...] = tuple(row for module in GROUPS for row in module.FLAGS)
"""All rows, in the order of the reference page."""

BY_NAME: dict[str, Flag] = {name: row for row in ROWS for name in (row.name, *row.aliases)}
"""Rows by every name that they have."""

__all__ = ["BY_NAME", "IGNORED", "MAPPED", "REFUSED", "ROWS", "Flag"]
