"""A language model as blocks, and those of them that a pipeline stage's chunk has."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.adapters import adapted
from parallel_core.blocks.block import Block, blocks_within
from parallel_core.blocks.carried_choice import CarriedChoice
from parallel_core.blocks.embedding import Embedding, SharedEmbedding
from parallel_core.blocks.float8 import rounded_to_8_bits
from parallel_core.blocks.head import CrossEntropy, output_layer
from parallel_core.blocks.hyper_connections import HyperConnection, stream_head
from parallel_core.blocks.layer import AnyLayer
from parallel_core.blocks.layer_kinds import layer_of
from parallel_core.blocks.layer_stack import LayerStack
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.linears import Kind
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch
from parallel_core.blocks.multi_token_prediction import MultiTokenPrediction
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.sparse_attention import bytes_of_choice, exchanged
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.messages import Message
from parallel_core.partition import chunk_layers
from parallel_core.recompute.plan import ChunkRecompute, RecomputePlan


@dataclass(frozen=True)
class Decoder(Block):
    """A chunk's layers; in the last chunk also the final norm, if the model has one, and with several residual streams
    the head that makes one stream of them. received, sent: the choice of keys (sparse attention) that the chunk is
    sent, or sends, beside the hidden states; None: there is none."""

    layers: LayerStack
    hc_head: HyperConnection | None
    final_layernorm: Norm | None
    received: CarriedChoice | None = None
    """The choice of keys that the chunk is sent in channels behind the hidden states; None: it is sent none."""
    sent: CarriedChoice | None = None
    """The choice of keys that the chunk sends in channels behind the hidden states; None: it sends none."""

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of its parts, and those that gather the shards of a choice of keys that the chunk before sent:
        layers need the choice for all queries that they attend with, not for the rank's shard of the sequence alone."""
        yield from super().messages(micro_batch)
        if self.received and micro_batch.sequence.tensor > 1:
            size = micro_batch.tokens_between * self.received.channels * FLOAT32
            yield from micro_batch.tensor_message("all_gather", size)
        yield from exchanged(self.received.count if self.received else 0, micro_batch)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep, and under "received" those of the choice of
        keys that the chunk before sent, if it sent one."""
        kept = super().kept_bytes(micro_batch)
        return kept | {"received": bytes_of_choice(self.received.count, micro_batch)} if self.received else kept

    @property
    def reads_tokens(self) -> bool:
        """Whether one of the layers is given the ids of the tokens, and with them recorded choices of experts, if the
        batch has these."""
        return any(sublayer.reads_tokens for sublayer in blocks_within(self.layers, Sublayer))


Numbered = tuple[tuple[int, AnyLayer], ...]
"""Pairs of a layer's global number, from 0, and its block."""

_OF_HEAD = ("output_layer", "loss")


@dataclass(frozen=True)
class Chunk(Block):
    """The part of a language model that one chunk of a pipeline stage has; all of it if there is one chunk. embedding:
    on the first chunk, or on the last a copy of it for multi-token prediction; shared_embedding: on a last chunk
    without `embedding`, the copy of the embedding's weight that a tied output layer uses."""

    embedding: Embedding | SharedEmbedding | None
    """The embedding on the first chunk; on the last one its copy, if multi-token prediction uses it there and the two
    chunks are not on one stage; else None."""
    decoder: Decoder
    mtp: MultiTokenPrediction | None
    output_layer: Linear | None
    loss: CrossEntropy | None
    shared_embedding: SharedEmbedding | None
    """The copy of the embedding's weight on a last chunk without an embedding, where the output layer's weight is tied
    to it; else None."""

    @property
    def _own_heads(self) -> dict[str, Block]:
        """Path -> output layer of a depth of multi-token prediction, without the operations that the depth counts
        itself."""
        own = self.mtp.own_output_layers if self.mtp else {}
        return {path: head.parameters_alone for path, head in own.items()}

    def cells(self) -> list[Block]:
        """Those that the chunk has of these blocks, in this order: embedding, each layer, head of several streams,
        final norm, the parts of each depth of multi-token prediction, output layer, output layers of depths that have
        their own. Neither the loss nor the copy in `shared_embedding` is among them."""
        layers, further = (layer for _, layer in self.decoder.layers.layers), self.mtp.cells() if self.mtp else ()
        found = (
            self.embedding,
            *layers,
            self.decoder.hc_head,
            self.decoder.final_layernorm,
            *further,
            self.output_layer,
            *self._own_heads.values(),
        )
        return [block for block in found if block is not None]

    def recomputed_cells(self) -> list[range]:
        """Ranges of positions in `cells`, each of cells that run forward again together in the backward pass: of layers
        those that are recomputed whole, of a depth of multi-token prediction its recomputed parts."""
        layers, before = self.decoder.layers, int(self.embedding is not None)
        groups = [group for group in layers.recompute.groups() if layers.recompute.layers[group.start].full]
        found = [range(group.start + before, group.stop + before) for group in groups]
        ends = (self.decoder.hc_head, self.decoder.final_layernorm)
        behind = before + len(layers.layers) + sum(end is not None for end in ends)
        further = self.mtp.recomputed_cells() if self.mtp else []
        return found + [range(group.start + behind, group.stop + behind) for group in further]

    def submodules(self) -> dict[str, Block]:
        """Name -> block; with a depth's own output layer, by its path "mtp.layers.<depth>.output_layer". The copy in
        `shared_embedding` has the name "embedding", and stands directly before the output layer."""
        blocks = super().submodules() | self._own_heads
        copy = blocks.pop("shared_embedding", None)
        if copy is None:
            return blocks
        before_head = {name: block for name, block in blocks.items() if name not in _OF_HEAD}
        return {**before_head, "embedding": copy, **{name: blocks[name] for name in _OF_HEAD}}

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """Bytes that the embedding keeps, plus the most that layers, or decoder and depths of multi-token prediction
        together, keep at once while one of their parts runs again in the backward. The second addend is 0 if nothing
        runs again but norms and activations whose output alone is computed again."""
        embedding = sum(self.embedding.kept_bytes(micro_batch).values()) if self.embedding else 0
        again = self.mtp.bytes_in_backward(micro_batch) if self.mtp else 0
        before = sum(self.decoder.kept_bytes(micro_batch).values()) if again else 0
        return embedding + max(self.decoder.layers.bytes_in_backward(micro_batch), before + again)

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the saved activations of offloaded modules of layers, of depths of multi-token prediction, too. They
        lie in host memory where the device has memory of its own. The bytes that `kept_bytes` gives for one path count
        all or, where they are fewer than those of the smallest tensor that goes there, not at all."""
        further = self.mtp.offloaded_bytes(micro_batch) if self.mtp else 0
        return self.decoder.layers.offloaded_bytes(micro_batch) + further


def chunk_of(config: ModelConfig, stage: int, chunk: int = 0, ends: tuple[bool, bool] | None = None) -> Chunk:
    """The blocks of chunk `chunk` of a pipeline stage. ends: whether it begins and whether it ends the model, if that
    does not follow from its place."""
    first, last = ends or (stage == chunk == 0, (stage, chunk) == config.parallel_config.placement.last)
    embedding, mtp = Embedding.of(config), _further_layers(config) if last else None
    copy, tied = SharedEmbedding(embedding.word_embeddings), not config.untie_embeddings_and_output_weights
    final_norm = Norm.of(config) if last and config.use_final_norm else None
    head = stream_head(config) if last else None
    needs_copy = last and not first and config.copies_embedding
    return Chunk(
        embedding if first else copy if needs_copy else None,
        _with_linears(
            Decoder(_layers(config, stage, chunk), head, final_norm, *_carried(config, stage, chunk)), config, "decoder"
        ),
        mtp,
        output_layer(config) if last else None,
        CrossEntropy(config.vocab_size) if last else None,
        copy if tied and last and not first and not needs_copy else None,
    )


def _carried(config: ModelConfig, stage: int, chunk: int) -> tuple[CarriedChoice | None, CarriedChoice | None]:
    """The choice of keys that a chunk is sent in channels behind the hidden states, and the one that it sends so."""
    virtual = config.parallel_config.placement.virtual(stage, chunk)
    return CarriedChoice.into(config, virtual), CarriedChoice.into(config, virtual + 1)


def _further_layers(config: ModelConfig) -> MultiTokenPrediction | None:
    """The depths of multi-token prediction, on the last chunk. Settings for recompute count them as layers behind the
    stage's own."""
    found = MultiTokenPrediction.of(config, _dropping_outputs(_recompute_of_depths(config), _depths(config), config))
    return found and _with_linears(found, config, "mtp")


def _with_linears(block: Kind, config: ModelConfig, path: str) -> Kind:
    """A part of a model at a path with its linears' adapters and their recipes of 8 bits."""
    return rounded_to_8_bits(adapted(block, config, path), config, path)


def _depths(config: ModelConfig) -> list[AnyLayer]:
    return [layer_of(config, config.num_layers + depth) for depth in range(config.multi_token_prediction.depths)]


def _recompute_of_depths(config: ModelConfig) -> ChunkRecompute:
    plan = _recompute_plan(config)
    stage, chunk = config.parallel_config.placement.last
    depths = _depths(config)
    first = plan.counts[chunk][stage] - len(depths)
    layers = (plan.layer(stage, chunk, first + i, depth.parts()) for i, depth in enumerate(depths))
    return _on_this_rank(plan.of_layers(layers), config)


def _on_this_rank(plan: ChunkRecompute, config: ModelConfig) -> ChunkRecompute:
    """The plan in which tensor-parallel ranks each keep a slice of the input of layers that are recomputed together, if
    it asks for that and sequence parallelism does not cut it already."""
    return replace(plan, slices_inputs=plan.slices_inputs and not config.parallel_config.sequence_parallel)


def _dropping_outputs(plan: ChunkRecompute, layers: Iterable[AnyLayer], config: ModelConfig) -> ChunkRecompute:
    """The plan in which outputs of norms and activations are not kept, where the configuration drops them. The output
    of a norm that is also the residual stream is kept in any case."""
    if not config.parallel_config.drops_outputs:
        return plan
    norms, both = not config.apply_residual_connection_post_norm, zip(plan.layers, layers, strict=True)
    return replace(plan, layers=tuple(asked.dropping_outputs(layer.parts(), norms) for asked, layer in both))


def _layers(config: ModelConfig, stage: int, chunk: int) -> LayerStack:
    layers, recompute = _recompute_of_layers(config, stage, chunk)
    return LayerStack(layers, _dropping_outputs(recompute, (layer for _, layer in layers), config))


def _recompute_of_layers(config: ModelConfig, stage: int, chunk: int) -> tuple[Numbered, ChunkRecompute]:
    """A chunk's layers with their global numbers, and their plan of recompute. Layers of --noop-layers are left out:
    they only take up a number."""
    parallel, plan = config.parallel_config, _recompute_plan(config)
    numbers = chunk_layers(config, parallel)[chunk][stage]
    there = [i for i, number in enumerate(numbers) if number not in (parallel.noop_layers or ())]
    made = _shared([layer_of(config, numbers[i]) for i in there])
    layers = tuple((numbers[i], layer) for i, layer in zip(there, made, strict=True))
    asked = (plan.layer(stage, chunk, i, layer.parts()) for i, (_, layer) in zip(there, layers, strict=True))
    joined = frozenset(place for place, (number, _) in enumerate(layers) if config.shares_keys(number))
    return layers, _on_this_rank(plan.of_layers(asked, joined), config)


def _shared(layers: Iterable[AnyLayer]) -> list[AnyLayer]:
    """The layers with one object for all that are equal, so that their figures are computed once."""
    distinct: list[AnyLayer] = []
    found = []
    for layer in layers:
        same = next((other for other in distinct if other == layer), layer)
        distinct += [layer] * (same is layer)
        found.append(same)
    return found


def _recompute_plan(config: ModelConfig) -> RecomputePlan:
    """The plan of recompute for all stages. Depths of multi-token prediction count as layers behind the last
    stage's."""
    counts = [[len(numbers) for numbers in row] for row in chunk_layers(config, config.parallel_config)]
    stage, chunk = config.parallel_config.placement.last
    counts[chunk][stage] += config.multi_token_prediction.depths
    return RecomputePlan.of(config.recompute_config, counts)


def recompute_lines(config: ModelConfig) -> Iterator[str]:
    """Lines for the log, as MindFormers has them, about recomputation that the user gave in its notation by stage
    (`recompute`, `select_recompute`, `select_comm_recompute`): the settings as tables, and for each recomputed layer
    that it runs again whole, or which parts do. No line where none of the three is given. Depths of multi-token
    prediction have the numbers behind the layers."""
    plan = _recompute_plan(config)
    yield from plan.log_lines()
    for chunk, row in enumerate(plan.counts):
        for stage in range(len(row)):
            layers, recompute = _recompute_of_layers(config, stage, chunk)
            yield from plan.layer_lines(zip((number for number, _ in layers), recompute.layers, strict=True))
    yield from plan.layer_lines(enumerate(_recompute_of_depths(config).layers, config.num_layers))


def stage_chunks(config: ModelConfig, stage: int) -> list[Chunk]:
    """The chunks of a pipeline stage, in the order in which a micro-batch goes through them."""
    return [chunk_of(config, stage, chunk) for chunk in range(len(chunk_layers(config, config.parallel_config)))]


def model_chunks(config: ModelConfig) -> list[Chunk]:
    """The chunks of all stages, stage after stage."""
    stages = config.parallel_config.pipeline_model_parallel_size
    return [chunk for stage in range(stages) for chunk in stage_chunks(config, stage)]
