"""Every command-line flag of Megatron-LM, MindSpeed and MindSpeed-LLM, as data.

`with_option`: flags that fill an option of the config, which is what they are made of. `without_option`: those that are
ignored or refused.
"""

from mapping.flags.files import FILES
from mapping.flags.flag import IGNORED, MAPPED, REFUSED, Flag
from mapping.flags.with_option import TABLES
from mapping.flags.without_option import (
    architectures,
    checkpoints,
    communication,
    data,
    experts,
    inference,
    kernels,
    logs,
    low_precision,
    memory,
    operations,
    optimizers,
    others,
    parallelism,
    post_training,
    vision,
)

GROUPS: tuple[tuple[Flag, ...], ...] = (
    *TABLES,
    FILES,
    *(
        module.FLAGS
        for module in (
            kernels,
            memory,
            communication,
            logs,
            parallelism,
            experts,
            architectures,
            data,
            checkpoints,
            operations,
            optimizers,
            low_precision,
            post_training,
            inference,
            vision,
            others,
        )
    ),
)
"""Rows under their headings: first what acts."""

ROWS: tuple[Flag, ...] = tuple(row for rows in GROUPS for row in rows)
"""All rows, in the order of the reference page."""

BY_NAME: dict[str, Flag] = {name: row for row in ROWS for name in (row.name, *row.aliases)}
"""Rows by every name that they have."""

__all__ = ["BY_NAME", "GROUPS", "IGNORED", "MAPPED", "REFUSED", "ROWS", "Flag"]
