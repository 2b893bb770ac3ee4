"""Multi-token prediction (DeepSeek-V3, 2024, section 2.2): depth K, from 0, predicts the token K + 2 places on.

Depth after depth, from the hidden states of the one before (the first: the decoder's) and the embeddings of the tokens
K + 1 places on:

    x = eh_proj([enorm(embeddings), hnorm(hidden states)]),  final_layernorm(transformer_layer(x))

With several residual streams all of them begin as x, and hc_head makes one of them before final_layernorm. Embedding
and output layer are the model's own, or each depth has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.block import Block, ParametersOf, join
from parallel_core.blocks.embedding import Embedding
from parallel_core.blocks.head import CrossEntropy, output_layer
from parallel_core.blocks.hyper_connections import HyperConnection, stream_head
from parallel_core.blocks.layer import AnyLayer
from parallel_core.blocks.layer_kinds import layer_of
from parallel_core.blocks.layer_stack import LayerStack
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.recomputed import input_messages, input_parts
from parallel_core.config import ModelConfig
from parallel_core.messages import Message
from parallel_core.operations import Operation
from parallel_core.recompute.plan import ChunkRecompute

Sizes = dict[str, int]


@dataclass(frozen=True)
class MultiTokenPredictionLayer(Block):
    """One depth of multi-token prediction: embeddings and the hidden states before it -> the hidden states after it.

    eh_proj is cut by columns, and its output gathered. embedding: the depth's own; None: the model's is used.
    recompute: of its transformer layer, and if that runs again whole, of enorm, hnorm and eh_proj, too.
    embedding_is_frozen: whether embeddings have no gradient; head_keeps_input: whether the output layer that reads the
    same hidden states as the depth keeps them.
    """

    embedding: ParametersOf | None
    """The depth's own embedding; None: it uses the model's."""
    enorm: Norm
    hnorm: Norm
    eh_proj: Linear
    transformer_layer: AnyLayer
    hc_head: HyperConnection | None
    final_layernorm: Norm
    recompute: ChunkRecompute
    """The recomputation of its transformer layer; if that runs again whole, enorm, hnorm and eh_proj do, too."""
    embedding_is_frozen: bool = False
    """Whether no gradient comes back to the embeddings, so that enorm keeps nothing; where the depth runs again, the
    embeddings are kept all the same."""
    head_keeps_input: bool = True
    """Whether the output layer that reads the same hidden states as the depth keeps them for its own gradient."""

    @classmethod
    def of(cls, config: ModelConfig, depth: int, recompute: ChunkRecompute) -> MultiTokenPredictionLayer:
        """The configuration's depth `depth`, from 0: its layer is of the kind of the decoder's last one. recompute: the
        plan with one layer, the depth's."""
        norm, size = Norm.of(config), config.hidden_size
        eh_proj = Linear.column(config, 2 * size, size, bias=False)
        has_own, ends = config.multi_token_prediction.own_ends > 0, (Embedding.of(config), output_layer(config))
        embedding = ends[0].own.parameters_alone if has_own else None
        layer = layer_of(config, config.num_layers + depth)
        parts = (embedding, norm, norm, eh_proj, layer, stream_head(config), norm)
        return cls(*parts, recompute, ends[0].frozen, ends[1].keeps_input)

    @property
    def is_computed_again(self) -> bool:
        """Whether the depth runs forward again in the backward pass: enorm, hnorm, eh_proj and the transformer layer,
        all together."""
        return self.recompute.layers[0].full

    @property
    def _last(self) -> dict[str, Block]:
        """Name -> block, for the parts that never run again: the head of several streams, if any, and the final
        norm."""
        ends = {"hc_head": self.hc_head, "final_layernorm": self.final_layernorm}
        return {name: block for name, block in ends.items() if block is not None}

    @property
    def recomputed_parts(self) -> range:
        """Positions in `submodules` of the parts that run forward again together if the depth `is_computed_again`."""
        return range(int(self.embedding is not None), len(self.submodules()) - len(self._last))

    @property
    def _stack(self) -> LayerStack:
        return LayerStack(((0, self.transformer_layer),), self.recompute)

    def _kept_of_layer(self, micro_batch: MicroBatch) -> Sizes:
        kept = self._stack.kept_bytes(micro_batch)
        return {f"transformer_layer{name.removeprefix('0')}": size for name, size in kept.items()}

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of the depth's parts, marked where the backward runs them again. Those of embedding, output
        layer and loss are not among them."""
        parts: dict[str, Block] = {**self.submodules(), "transformer_layer": self._stack}
        asked = self.recomputed_parts if self.is_computed_again else range(0)
        for position, (name, part) in enumerate(parts.items()):
            for one in part.operations(micro_batch):
                yield replace(one, name=join(name, one.name), runs_again=one.runs_again or position in asked)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of eh_proj and of the transformer layer, those of second runs in the backward included, and
        those that gather the slices of the depth's inputs, where ranks keep slices. Those of embedding, output layer
        and loss are not among them."""
        projection, slices = list(self._of_projection(micro_batch)), self.recompute.slices_inputs
        yield from projection
        yield from self._stack.messages(micro_batch)
        if self.is_computed_again:
            yield from (replace(one, backward=True) for one in projection if not one.backward)
            yield from input_messages(self.transformer_layer, micro_batch, slices)  # the messages of the second input

    def _of_projection(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of eh_proj, of the all-gather of its output's columns, and with sequence parallelism of the
        all-gather of that output's gradient."""
        size = micro_batch.tokens * (self.eh_proj.output_size // micro_batch.tensor) * micro_batch.item_size
        yield from self.eh_proj.messages(micro_batch)
        yield from micro_batch.tensor_message("all_gather", size)
        yield from micro_batch.enter(self.eh_proj.output_size, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> Sizes:
        """Path -> bytes kept for the backward. Where the output layer that reads the same hidden states as the depth
        keeps them in the same type, they are counted there, not here. Where the depth runs again and each rank keeps a
        slice of its inputs, these slices count here."""
        last = {name: sum(block.kept_bytes(micro_batch).values()) for name, block in self._last.items()}
        if not self.is_computed_again:
            kept = self._kept_of_projection(micro_batch)
            kept["hnorm"] -= self._shared_with_head(micro_batch)
            if self.embedding_is_frozen:
                kept["enorm"] = 0
            return kept | self._kept_of_layer(micro_batch) | last
        inputs = {"enorm": self._input(micro_batch), "hnorm": self._input(micro_batch)}
        if input_parts(self.transformer_layer, micro_batch, self.recompute.slices_inputs) == 1:
            inputs["hnorm"] -= self._shared_with_head(micro_batch)
        layer = self.transformer_layer
        parts = input_parts(layer, micro_batch, self.recompute.slices_inputs)
        kept_by_layer = sum(self._kept_of_layer(micro_batch).values()) - layer.input_bytes(micro_batch) // parts
        return inputs | {"transformer_layer": kept_by_layer} | last

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """The most bytes that the depth keeps at once while a part of it runs again: what its forward kept, and what
        that second run adds. 0 if nothing runs again but norms and activations whose output alone is computed
        again."""
        before = sum(self.kept_bytes(micro_batch).values())
        if not self.is_computed_again:
            again = self._stack.bytes_in_backward(micro_batch)
            return again and again + before - sum(self._kept_of_layer(micro_batch).values())
        layer = self.transformer_layer
        again = sum(self._kept_of_projection(micro_batch).values()) + sum(layer.kept_bytes(micro_batch).values())
        has_inputs = input_parts(layer, micro_batch, self.recompute.slices_inputs) == 1
        inputs = 2 * layer.normed_bytes(micro_batch) * has_inputs  # counted in `before`
        return before + again + 2 * layer.input_bytes(micro_batch) - inputs

    def _kept_of_projection(self, micro_batch: MicroBatch) -> Sizes:
        parts = {"enorm": self.enorm, "hnorm": self.hnorm, "eh_proj": self.eh_proj}
        return {name: sum(part.kept_bytes(micro_batch).values()) for name, part in parts.items()}

    def _input(self, micro_batch: MicroBatch) -> int:
        """Bytes of one of the depth's two inputs, embeddings or hidden states, that a rank keeps where the depth runs
        again."""
        layer, slices = self.transformer_layer, self.recompute.slices_inputs
        return layer.normed_bytes(micro_batch) // input_parts(layer, micro_batch, slices)

    def _shared_with_head(self, micro_batch: MicroBatch) -> int:
        same = self.head_keeps_input and micro_batch.dtype == micro_batch.residual_dtype
        return self.transformer_layer.normed_bytes(micro_batch) if same else 0

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the saved activations of offloaded modules of the transformer layer, as `LayerStack.offloaded_bytes`
        counts them."""
        return self._stack.offloaded_bytes(micro_batch)


@dataclass(frozen=True)
class MultiTokenPrediction(Block):
    """All depths of multi-token prediction, one after the other, each with a loss of its own. `embedding`,
    `output_layer` and `loss`: blocks by which FLOPs, messages and bytes of the embedding, output layer and loss that a
    depth uses are counted, whether these are its own or the model's. own_output_layers: path in the model -> a depth's
    own output layer."""

    layers: tuple[MultiTokenPredictionLayer, ...]
    embedding: Embedding
    output_layer: Linear
    loss: CrossEntropy
    own_output_layers: dict[str, Linear]
    """Path in the model -> a depth's own output layer; empty where depths use the model's."""

    @classmethod
    def of(cls, config: ModelConfig, recompute: ChunkRecompute) -> MultiTokenPrediction | None:
        """The configuration's depths, one for each layer of the plan `recompute`; None if that has none."""
        depths = [
            MultiTokenPredictionLayer.of(config, depth, replace(recompute, layers=(asked,)))
            for depth, asked in enumerate(recompute.layers)
        ]
        head = output_layer(config)
        own = {
            f"mtp.layers.{depth}.output_layer": replace(head, allocates_weight=True)
            for depth in range(config.multi_token_prediction.own_ends)
        }
        parts = Embedding.of(config), head, CrossEntropy(config.vocab_size)
        return cls(tuple(depths), *parts, own) if depths else None

    def submodules(self) -> dict[str, Block]:
        """Name -> depth. Embedding, output layer and loss, the model's or depths' own, are no entries of their own; a
        depth's own embedding lies inside the depth."""
        return {f"layers.{depth}": layer for depth, layer in enumerate(self.layers)}

    def cells(self) -> list[Block]:
        """The parts of all depths, depth after depth: with depths' own embeddings, but without the model's embedding
        and without any output layer."""
        return [part for layer in self.layers for part in layer.submodules().values()]

    def recomputed_cells(self) -> list[range]:
        """Ranges of positions in `cells` of those that run forward again together in the backward pass: for each depth
        that is computed again enorm, hnorm, eh_proj and the transformer layer."""
        starts = [sum(len(layer.submodules()) for layer in self.layers[:depth]) for depth in range(len(self.layers))]
        return [
            range(start + layer.recomputed_parts.start, start + layer.recomputed_parts.stop)
            for start, layer in zip(starts, self.layers, strict=True)
            if layer.is_computed_again
        ]

    @property
    def _used(self) -> dict[str, Block]:
        """Name -> block that every depth uses, whether the model's own or one of the depth's."""
        return {"embedding": self.embedding, "output_layer": self.output_layer, "loss": self.loss}

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        used = sum(block.forward_flops(tokens, seq_length) for block in self._used.values())
        return super().forward_flops(tokens, seq_length) + len(self.layers) * used

    def frozen_flops(self, tokens: int) -> float:
        used = sum(block.frozen_flops(tokens) for block in self._used.values())
        return super().frozen_flops(tokens) + len(self.layers) * used

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of all depths, each with those of embedding, output layer and loss."""
        for depth, layer in self.submodules().items():
            for name, block in {"": layer, **self._used}.items():
                yield from (one.within(join(depth, name)) for one in block.operations(micro_batch))

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of all depths, each with those of embedding, output layer and loss, without depths' numbers in
        names."""
        for layer in self.layers:
            yield from layer.messages(micro_batch)
            for block in self._used.values():
                yield from block.messages(micro_batch)

    def kept_bytes(self, micro_batch: MicroBatch) -> Sizes:
        used = {name: sum(block.kept_bytes(micro_batch).values()) for name, block in self._used.items()}
        by_depth = [{**layer.kept_bytes(micro_batch), **used} for layer in self.layers]
        return {f"layers.{depth}.{name}": size for depth, kept in enumerate(by_depth) for name, size in kept.items()}

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the saved activations of offloaded modules of all depths, as `LayerStack.offloaded_bytes` counts
        them."""
        return sum(layer.offloaded_bytes(micro_batch) for layer in self.layers)

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """The most bytes that the depths keep at once while a part of one runs again: what the forward of the depths up
        to that one, and their embeddings, kept, and what the second run adds. 0 if nothing runs again but norms and
        activations whose output alone is computed again. Bytes of output layers and losses do not count."""
        kept = [sum(layer.kept_bytes(micro_batch).values()) for layer in self.layers]
        embedded = sum(self.embedding.kept_bytes(micro_batch).values())
        again = [layer.bytes_in_backward(micro_batch) for layer in self.layers]
        totals = (sum(kept[:depth]) + (depth + 1) * embedded + size for depth, size in enumerate(again) if size)
        return max(totals, default=0)
