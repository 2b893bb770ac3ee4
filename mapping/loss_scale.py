"""Flags that ask for a loss scale in float32, which has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from mapping.given import Given
from parallel_core.config import AllConfig
from parallel_core.config.base import Unjudged
from parallel_core.config.no_effect.training import IN_FLOAT32
from parallel_core.config.tree import path_of
from parallel_core.findings import Finding

_DEFAULTS = {path_of("loss_scale_window"): 1000}
"""Megatron's, where the flag has none of its own here: typed out it asks for nothing."""


def out_of_place(typed: Sequence[Given], config: AllConfig) -> Iterator[Finding]:
    """Of files nothing: they may hold what a part of theirs switches off."""
    with suppress(Unjudged):
        if IN_FLOAT32.is_idle(config):
            for entry in typed:
                asks_for_nothing = entry.value in (0, entry.row.default, _DEFAULTS.get(entry.target))
                if entry.target in IN_FLOAT32.paths and not asks_for_nothing:
                    value = None if isinstance(entry.value, bool) else entry.value
                    yield Finding(entry.name, value, "needs --fp16 or --bf16", f"add one or leave {entry.name} out")
