"""What ranks tell each other to update parameters that are computed with as wholes (--optimizer muon)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallel_core.costs.parameters import stage_buffers, stage_coordinates
from parallel_core.messages import Message, message
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.optimizer import update_rule
from parallel_core.sharding import SHARDS_OF_STATES

if TYPE_CHECKING:
    from parallel_core.config import AllConfig


def updates(config: AllConfig, stage: int, replica: int = 0) -> Iterator[Message]:
    """Of each such parameter of a stage: directions that slices of the distributed optimizer cut are put together;
    then come the messages of its rule."""
    optimizer, sharded = config.optimizer_config, config.training_config.gradient.shards_states
    coordinates = stage_coordinates(config, stage, replica)
    for plan in stage_buffers(config, stage):
        over = SHARDS_OF_STATES[plan.replicas]
        rank, members = coordinates[over] if sharded else (0, 1)
        for entry in plan.entries:
            rule = update_rule(entry.spec, optimizer)
            if rule.is_elementwise:
                continue
            owners, size = plan.owners(entry.span, members), entry.place.size * DTYPES["float32"].bytes
            if len(owners) > 1:
                yield from message(over, "all_reduce", size, members, "direction of a matrix")
            if rank in owners:
                yield from rule.messages(entry, optimizer.options_of(rule), coordinates["tp"][1])
