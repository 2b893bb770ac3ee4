"""The flags that act: the options of the config, and the other flags that fill them."""

from mapping.flags.with_option import dataset, model, moe, optimizer, parallel, training
from mapping.flags.with_option.build import tables

WITHOUT_FLAG = ("--world-size", "--data-parallel-size", "--lora-target-cells")
"""Options that the launcher's environment, the other sizes, or files alone say."""

TABLES = tuple(
    tables(
        (model.ACTING, training.ACTING, optimizer.ACTING, parallel.ACTING, dataset.ACTING, moe.ACTING),
        WITHOUT_FLAG,
    )
)
"""Rows by section of the config."""
