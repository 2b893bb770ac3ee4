"""Flags that are ignored or refused: a file for each subject, with its rows in `FLAGS`."""

from importlib import import_module

from mapping.flags.flag import Flag

_SUBJECTS = (
    *("kernels", "memory", "communication", "logs", "parallelism", "experts", "architectures", "data", "checkpoints"),
    *("operations", "optimizers", "low_precision", "post_training", "inference", "vision", "others"),
)

TABLES: tuple[tuple[Flag, ...], ...] = tuple(import_module(f"{__name__}.{name}").FLAGS for name in _SUBJECTS)
"""Tables of flags, in the order of the reference page."""
