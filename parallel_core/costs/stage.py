"""One rank of a pipeline stage as planned: chunks, named parameters, flat buffers; and the FLOPs of a training."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from parallel_core.blocks import Chunk, MicroBatch, ParameterSpec, model_chunks, stage_chunks
from parallel_core.buffers.layout import BufferPlan, plan_buffers
from parallel_core.buffers.slots import Cell, Residence, plan_residence
from parallel_core.config import AllConfig, ModelConfig
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.sharding import INSTANCES_OF_STATES, SHARDS_OF_STATES, Coordinates, ShardSpec, place


class StageParameter(NamedTuple):
    """A parameter of a stage, trained or frozen. shard: its global name (of an expert's parameter the name on the first
    expert-parallel rank) and shape, cuts and groups; spec: the block's description of it, with its type; chunk: the
    number, from 0, of its chunk among the stage's."""

    shard: ShardSpec
    """Global name (of an expert's parameter the name on the first expert-parallel rank), global shape, cuts and
    groups."""
    spec: ParameterSpec
    chunk: int
    """Number of its chunk among the stage's, from 0."""


@dataclass(frozen=True, eq=False)
class StagePlan:
    """One rank of a pipeline stage as planned: its chunks, parameters and buffers. It is tensor-parallel rank 0 of
    replica `replica`, counted from 0, of the dense parameters."""

    config: AllConfig
    stage: int
    replica: int = 0
    """The rank's place among the replicas of the dense parameters; it is tensor-parallel rank 0 of that replica."""

    @cached_property
    def chunks(self) -> list[Chunk]:
        """The stage's chunks, in the order in which a micro-batch goes through them."""
        return stage_chunks(self.config.model_config, self.stage)

    @cached_property
    def micro_batch(self) -> MicroBatch:
        """The sizes of a micro-batch on a rank, which all blocks share."""
        return MicroBatch.of(self.config.model_config)

    @cached_property
    def named(self) -> list[StageParameter]:
        """All parameters of the rank, trained and frozen, chunk after chunk; a last stage's copy of a tied embedding
        included. Experts have the names of those of the first expert-parallel rank."""
        return [
            StageParameter(spec.shard.named(name), spec, number)
            for number, chunk in enumerate(self.chunks)
            for name, spec in chunk.parameters().items()
        ]

    @property
    def parameters(self) -> list[ShardSpec]:
        """The specs of all parameters of the stage, in the order of `named`."""
        return [parameter.shard for parameter in self.named]

    @cached_property
    def trained(self) -> list[StageParameter]:
        """The parameters that are trained, with adapters theirs alone, in the order of `named`."""
        return [parameter for parameter in self.named if self.config.lora_config.trains(parameter.shard)]

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the rank's shards of the parameters that are not trained, and so lie in no buffer."""
        trains = self.config.lora_config.trains
        frozen = (parameter for parameter in self.named if not trains(parameter.shard))
        return sum(
            place(parameter.shard, self.coordinates).size * DTYPES[parameter.spec.dtype].bytes for parameter in frozen
        )

    @cached_property
    def coordinates(self) -> Coordinates:
        """Kind of group -> (place of this rank in the group, size of the group), for the groups that buffers are laid
        out by. The place in `dp` is always given as 0, and on a middle stage that in `embedding` as 1."""
        parallel = self.config.parallel_config
        tensor, stages = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
        replicas = parallel.data_parallel_size * parallel.context_parallel_size
        expert_tensor, experts = parallel.expert_tensor_parallel_size, parallel.expert_model_parallel_size
        position, copies = self.replica * tensor, max(1, replicas * tensor // (expert_tensor * experts))
        return {
            "tp": (0, tensor),
            "pp": (self.stage, stages),
            "dp": (0, parallel.data_parallel_size),
            "expert-tp": (position % expert_tensor, expert_tensor),
            "ep": (position // expert_tensor % experts, experts),
            **self._of_replicas("dp-cp", self.replica, replicas),
            **self._of_replicas("expert-dp", position // (expert_tensor * experts), copies),
            "embedding": (min(self.stage, 1), min(stages, 2)),
        }

    def _of_replicas(self, kind: str, position: int, count: int) -> Coordinates:
        """The rank's place and the group's size among `count` ranks with the same parameters (`kind`), among those that
        share one instance of the distributed optimizer's state, and among the instances."""
        instances = self.config.training_config.gradient.num_distributed_optimizer_instances
        of_instance = max(1, count // instances)
        return {
            kind: (position, count),
            SHARDS_OF_STATES[kind]: (position % of_instance, of_instance),
            INSTANCES_OF_STATES[kind]: (position // of_instance, instances),
        }

    @cached_property
    def cell_count(self) -> int:
        """The number of the stage's cells: the parts that work one after the other, such as the embedding, each layer,
        the final norm and the head."""
        return sum(len(chunk.cells()) for chunk in self.chunks)

    @cached_property
    def cells(self) -> list[Cell | None]:
        """For each parameter of `trained` the position, from 0, of its cell among the stage's `cell_count` cells; never
        None. The copy in a chunk's `shared_embedding` counts as its last cell's."""
        trains = self.config.lora_config.trains
        return [cell for cell, named in zip(self._cells_of_all(), self.named, strict=True) if trains(named.shard)]

    def _cells_of_all(self) -> Iterator[Cell | None]:
        before = 0
        for chunk in self.chunks:
            counts = [len(cell.parameters()) for cell in chunk.cells()]
            for number, count in enumerate(counts):
                yield from [before + number] * count
            before += len(counts)
            yield from [before - 1] * (len(chunk.parameters()) - sum(counts))

    @cached_property
    def buffers(self) -> list[BufferPlan]:
        """The flat buffers that a rank's trained parameters and their gradients lie in."""
        gradient, keys = self.config.training_config.gradient, None
        if gradient.zero_stage >= 2:
            keys = self.cells
        elif gradient.overlap_grad_reduce:
            keys = [parameter.chunk for parameter in self.trained]
        placed = [(place(parameter.shard, self.coordinates), parameter.spec.dtype) for parameter in self.trained]
        return plan_buffers(placed, gradient.type_for, gradient.bucket_rule(self.coordinates), keys)

    @cached_property
    def residences(self) -> list[tuple[BufferPlan, Residence]]:
        """Each buffer with the part of it that a rank keeps, and the slots for the rest while it is needed."""
        zero = self.config.training_config.gradient.zero
        return [
            (plan, plan_residence(plan, self.cells, self.cell_count, self.coordinates, *zero)) for plan in self.buffers
        ]

    @cached_property
    def shape(self) -> list[Chunk]:
        """The chunks with 0 in the place of each decoder layer's number, to find stages that are alike; with sparse
        attention, blocks keep the number of the layer that chose the keys, and may differ by it."""
        return [_without_numbers(chunk) for chunk in self.chunks]


def _without_numbers(chunk: Chunk) -> Chunk:
    stack = chunk.decoder.layers
    bare = replace(stack, layers=tuple((0, layer) for _, layer in stack.layers))
    return replace(chunk, decoder=replace(chunk.decoder, layers=bare))


def training_flops(config: ModelConfig, samples: int) -> float:
    """FLOPs of forward and backward over `samples` sequences of --seq-length, by all ranks together; what is
    recomputed is not counted twice."""
    return flops_of(model_chunks(config), config.seq_length) * samples


def flops_of(chunks: Iterable[Chunk], seq_length: int) -> float:
    """FLOPs of one sequence's forward and backward through `chunks`. The backward counts as twice the forward, and for
    products with frozen weights as much as the forward. Tokens choose all experts equally often; choices of experts
    that compute nothing (--num-zero-experts) do not count."""
    of_token = (3.0 * chunk.forward_flops(1, seq_length) - chunk.frozen_flops(1) for chunk in chunks)
    return sum(of_token) * seq_length
