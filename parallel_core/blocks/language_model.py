"""A language model as blocks: which of them a pipeline stage's chunk has, under Megatron's global names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parallel_core.blocks.block import Block, join
from parallel_core.blocks.embedding import Embedding, SharedEmbedding
from parallel_core.blocks.head import CrossEntropy, output_layer
from parallel_core.blocks.layer import Layer
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.recomputed import (
    input_bytes,
    input_messages,
    kept_by_second_run,
    kept_of_group,
    kept_of_layer,
    messages_run_again,
)
from parallel_core.messages import Message
from parallel_core.partition import chunk_layers
from parallel_core.recompute import ChunkRecompute, RecomputePlan

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class LayerStack(Block):
    """Layers under their global numbers, 0-based."""

    layers: tuple[tuple[int, Layer], ...]
    recompute: ChunkRecompute

    def submodules(self) -> dict[str, Block]:
        return {str(number): layer for number, layer in self.layers}

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Of layers that are computed again together, the first is named."""
        named = (self._kept_of(group, micro_batch).items() for group in self.recompute.groups())
        return {name: size for group in named for name, size in group}

    def _kept_of(self, group: range, micro_batch: MicroBatch) -> dict[str, int]:
        (number, layer), asked = self.layers[group.start], self.recompute.layers[group.start]
        if asked.full:
            slices = self.recompute.slices_inputs
            return {str(number): kept_of_group(self._of(group), micro_batch, asked, slices)}
        return {join(str(number), name): size for name, size in kept_of_layer(layer, micro_batch, asked).items()}

    def _of(self, group: range) -> list[Layer]:
        return [layer for _, layer in self.layers[group.start : group.stop]]

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """Of what is kept, bytes that lie in host memory where the device has memory of its own."""
        return sum(
            size
            for group in self.recompute.groups()
            for name, size in self._kept_of(group, micro_batch).items()
            if self.recompute.layers[group.start].offloads(name.partition(".")[2])
        )

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """The most that the layers keep at once during their backward because parts of them are run again: what comes
        before such a part, what its second run keeps and gives, and the gradient with which that is run backwards."""
        before = most = 0
        for group in self.recompute.groups():
            layer, asked = self.layers[group.start][1], self.recompute.layers[group.start]
            before += sum(self._kept_of(group, micro_batch).values())
            again = kept_by_second_run(self._of(group), micro_batch, asked, self.recompute.slices_inputs)
            most = max(most, before + again + 2 * input_bytes(layer, micro_batch)) if again else most
        return most

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Without the layers' numbers, so that equal messages can be counted together."""
        for (_, layer), asked in zip(self.layers, self.recompute.layers, strict=True):
            yield from layer.messages(micro_batch)
            yield from messages_run_again(layer, micro_batch, asked)
        for group in self.recompute.groups():
            if self.recompute.layers[group.start].full:
                yield from input_messages(self.layers[group.start][1], micro_batch, self.recompute.slices_inputs)


@dataclass(frozen=True)
class Decoder(Block):
    """A chunk's layers, and in the last chunk the final norm."""

    layers: LayerStack
    final_layernorm: Norm | None


@dataclass(frozen=True)
class Chunk(Block):
    """What one virtual stage of a pipeline has of a language model; without a pipeline, all of it."""

    embedding: Embedding | None
    decoder: Decoder
    output_layer: Linear | None
    loss: CrossEntropy | None
    shared_embedding: SharedEmbedding | None
    """Of a last chunk that is not the first one too, when embeddings are tied."""

    def cells(self) -> list[Block]:
        """The parts that work one after the other, in their order; their parameters in turn are the chunk's."""
        layers = (layer for _, layer in self.decoder.layers.layers)
        found = (self.embedding, *layers, self.decoder.final_layernorm, self.output_layer)
        return [block for block in found if block is not None]

    def recomputed_cells(self) -> list[range]:
        """Positions of cells that run forward again together."""
        layers, before = self.decoder.layers, int(self.embedding is not None)
        groups = (group for group in layers.recompute.groups() if layers.recompute.layers[group.start].full)
        return [range(group.start + before, group.stop + before) for group in groups]

    def submodules(self) -> dict[str, Block]:
        """The copy of the embedding goes by the first stage's name: it is the same parameter."""
        blocks = super().submodules()
        copy = blocks.pop("shared_embedding", None)
        return blocks if copy is None else {**blocks, "embedding": copy}

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """The most that is kept at once during the backward because parts of the layers are run again then; what comes
        after the layers is through by then."""
        embedding = sum(self.embedding.kept_bytes(micro_batch).values()) if self.embedding else 0
        return embedding + self.decoder.layers.bytes_in_backward(micro_batch)


def chunk_of(config: ModelConfig, stage: int, chunk: int = 0) -> Chunk:
    """The blocks of one of a pipeline stage's chunks."""
    layout = chunk_layers(config, config.parallel_config)
    first = stage == chunk == 0
    last = (chunk, stage) == (len(layout) - 1, len(layout[-1]) - 1)
    embedding = Embedding.of(config)
    tied_copy = last and not first and not config.untie_embeddings_and_output_weights
    return Chunk(
        embedding if first else None,
        Decoder(_layers(config, stage, chunk), Norm.of(config) if last and config.use_final_norm else None),
        output_layer(config) if last else None,
        CrossEntropy(config.vocab_size) if last else None,
        SharedEmbedding(embedding.word_embeddings) if tied_copy else None,
    )


def _layers(config: ModelConfig, stage: int, chunk: int) -> LayerStack:
    """Layers of --noop-layers are left out: they only take up a number. With sequence parallelism the input of a group
    of layers is a rank's own already."""
    parallel = config.parallel_config
    plan, numbers = _recompute_plan(config).chunk(stage, chunk), chunk_layers(config, parallel)[chunk][stage]
    there = [i for i, number in enumerate(numbers) if number not in (parallel.noop_layers or ())]
    recompute = replace(
        plan,
        layers=tuple(plan.layers[i] for i in there),
        slices_inputs=plan.slices_inputs and not parallel.sequence_parallel,
    )
    return LayerStack(tuple((numbers[i], Layer.of(config, numbers[i])) for i in there), recompute)


def _recompute_plan(config: ModelConfig) -> RecomputePlan:
    layout = chunk_layers(config, config.parallel_config)
    return RecomputePlan.of(config.recompute_config, [[len(numbers) for numbers in row] for row in layout])


def recompute_lines(config: ModelConfig) -> Iterator[str]:
    """What the log says of lists by stage: the tables, and each layer's."""
    plan = _recompute_plan(config)
    yield from plan.log_lines()
    for chunk, row in enumerate(chunk_layers(config, config.parallel_config)):
        for stage, numbers in enumerate(row):
            yield from plan.layer_lines(stage, chunk, numbers.start)


def stage_chunks(config: ModelConfig, stage: int) -> list[Chunk]:
    """A stage's chunks, in the order in which a micro-batch goes through them."""
    return [chunk_of(config, stage, chunk) for chunk in range(len(chunk_layers(config, config.parallel_config)))]


def model_chunks(config: ModelConfig) -> list[Chunk]:
    """The chunks of all stages."""
    stages = config.parallel_config.pipeline_model_parallel_size
    return [chunk for stage in range(stages) for chunk in stage_chunks(config, stage)]
