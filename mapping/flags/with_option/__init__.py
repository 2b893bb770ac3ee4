"""The flags of the config's options, and further flags that fill them."""

from mapping.flags.with_option import dataset, model, moe, optimizer, parallel, training
from mapping.flags.with_option.build import tables

WITHOUT_FLAG = ("--world-size", "--data-parallel-size", "--lora-target-cells")
"""Flags of options that are not typed: the launcher's environment, the other sizes, or files give them."""

TABLES = tuple(
    tables(
        (model.ACTING, training.ACTING, optimizer.ACTING, parallel.ACTING, dataset.ACTING, moe.ACTING),
        WITHOUT_FLAG,
    )
)
"""The rows of flags, a table for each section of the config."""
