"""Every command-line flag of Megatron-LM, MindSpeed and MindSpeed-LLM, as data: one module per argument group."""

from mapping.flags import (
    checkpointing,
    data,
    instruction,
    latent,
    lora,
    model,
    moe,
    optimizer,
    parallel,
    performance,
    positions,
    precision,
    profiling,
    pynative,
    training,
)
from mapping.flags.flag import IGNORED, MAPPED, REFUSED, Flag

GROUPS = (model, positions, latent, moe, precision, training, optimizer, parallel, data, instruction, checkpointing,
          profiling, lora, performance, pynative)

ROWS: tuple[Flag, ...] = tuple(row for module in GROUPS for row in module.FLAGS)
"""All rows, in the order of the reference page."""

BY_NAME: dict[str, Flag] = {name: row for row in ROWS for name in (row.name, *row.aliases)}
"""Rows by every name that they have."""

__all__ = ["BY_NAME", "IGNORED", "MAPPED", "REFUSED", "ROWS", "Flag"]
