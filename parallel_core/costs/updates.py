"""What ranks tell each other to update parameters that are computed with as wholes (--optimizer muon)."""

from collections.abc import Iterator

from parallel_core.costs.stage import StagePlan
from parallel_core.messages import Message, message
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.optimizer import update_rule
from parallel_core.sharding import SHARDS_OF_STATES


def updates(plan: StagePlan) -> Iterator[Message]:
    """Of each such parameter of a stage: directions that slices of the distributed optimizer cut are put together;
    then come the messages of its rule."""
    optimizer, sharded = plan.config.optimizer_config, plan.config.training_config.gradient.shards_states
    coordinates = plan.coordinates
    for buffer in plan.buffers:
        over = SHARDS_OF_STATES[buffer.replicas]
        rank, members = coordinates[over] if sharded else (0, 1)
        for entry in buffer.entries:
            rule = update_rule(entry.spec, optimizer)
            if rule.is_elementwise:
                continue
            owners, size = buffer.owners(entry.span, members), entry.place.size * DTYPES["float32"].bytes
            if len(owners) > 1:
                yield from message(over, "all_reduce", size, members, "direction of a matrix")
            if rank in owners:
                yield from rule.messages(entry, optimizer.options_of(rule), coordinates["tp"][1])
