"""What the ranks that share matrices out tell each other to orthogonalise them (--optimizer muon)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parallel_core.buffers import Entry
from parallel_core.costs.parameters import stage_buffers, stage_coordinates
from parallel_core.dtypes import DTYPES
from parallel_core.messages import Message, message
from parallel_core.newton_schulz import PRECISIONS
from parallel_core.optimizer import treatment
from parallel_core.sharding import SHARDS_OF_STATES

if TYPE_CHECKING:
    from parallel_core.config import AllConfig

FLOAT32 = DTYPES["float32"].bytes


def orthogonalisation(config: AllConfig, stage: int, replica: int = 0) -> Iterator[Message]:
    """Of each matrix of a stage: a direction that slices of the distributed optimizer cut is put together; one that
    tensor parallelism cuts is gathered, or its Gram matrices are summed."""
    coordinates, sharded = stage_coordinates(config, stage, replica), config.training_config.gradient.shards_states
    for plan in stage_buffers(config, stage):
        over = SHARDS_OF_STATES[plan.replicas]
        rank, members = coordinates[over] if sharded else (0, 1)
        for entry in plan.entries:
            if treatment(entry.spec, config.optimizer_config).rule != "muon":
                continue
            owners = plan.owners(entry.span, members)
            if len(owners) > 1:
                yield from message(over, "all_reduce", entry.place.size * FLOAT32, members, "direction of a matrix")
            if rank in owners:
                yield from _of_cut_matrix(entry, config, coordinates["tp"][1])


def _of_cut_matrix(entry: Entry, config: AllConfig, tensor: int) -> Iterator[Message]:
    muon = config.optimizer_config.muon
    if not entry.spec.cuts or muon.muon_tp_mode == "blockwise":
        return
    if muon.muon_tp_mode == "duplicated":
        yield from message("tp", "all_gather", entry.place.size * FLOAT32, tensor, "direction of a matrix")
        return
    rows = entry.spec.interleaved_rows if muon.muon_split_qkv else ()
    (cut,), item_size = entry.spec.cuts, DTYPES[PRECISIONS[muon.muon_fp32_matmul_prec]].bytes
    outputs, inputs = entry.place.shape
    repeats = outputs // sum(rows) if rows else 1
    for matrix in [(repeats * n, inputs) for n in rows] or [(outputs, inputs)]:
        side = matrix[1 - cut.axis]
        yield from message("tp", "all_reduce", FLOAT32, tensor, "norm of a matrix")
        for one in message("tp", "all_reduce", side * side * item_size, tensor, "gram matrix"):
            yield one.times(muon.muon_num_ns_steps)
