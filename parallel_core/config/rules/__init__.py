"""Rules between sections: every public function of these files that yields findings about the `Sections`."""

from collections.abc import Callable, Iterator
from inspect import isfunction

from parallel_core.config.rules import (
    compressed_attention,
    cross_layer_attention,
    layout,
    model,
    moe,
    optimizer,
    pipeline,
    recompute,
    training,
)
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding

RULES: tuple[Callable[[Sections], Iterator[Finding]], ...] = tuple(
    rule
    for subject in (
        model,
        compressed_attention,
        cross_layer_attention,
        pipeline,
        layout,
        moe,
        recompute,
        training,
        optimizer,
    )
    for name, rule in vars(subject).items()
    if isfunction(rule) and rule.__module__ == subject.__name__ and not name.startswith("_")
)
"""All rules between sections. A rule that reads a value already known to be wrong is passed over."""
