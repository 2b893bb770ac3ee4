"""Layers one after the other, all, some or none of which are computed again in the backward pass."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from parallel_core.blocks.block import Block, join
from parallel_core.blocks.layer import AnyLayer
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.recomputed import (
    input_messages,
    kept_by_second_run,
    kept_of_group,
    kept_of_layer,
    messages_run_again,
    runs_again,
)
from parallel_core.messages import Message
from parallel_core.operations import Operation
from parallel_core.recompute.plan import ChunkRecompute

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class LayerStack(Block):
    """Layers one after the other, with their numbers (global, from 0; 0 for that of a depth of multi-token prediction),
    and the recomputation and offloading of each."""

    layers: tuple[tuple[int, AnyLayer], ...]
    recompute: ChunkRecompute

    def submodules(self) -> dict[str, Block]:
        return {str(number): layer for number, layer in self.layers}

    @cached_property
    def _models(self) -> list[int]:
        """For each position the first one whose layer and recomputation are the same, so that figures are computed
        once."""
        seen: list[int] = []
        for position, ((_, layer), asked) in enumerate(zip(self.layers, self.recompute.layers, strict=True)):
            alike = (i for i in set(seen) if self.layers[i][1] is layer and self.recompute.layers[i] == asked)
            seen.append(next(alike, position))
        return seen

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def _once(self, key: tuple[Hashable, ...], position: int, answer: Callable[[], Answer]) -> Answer:
        """The figure `key` of the layer at a position, computed by `answer` for the first of those like it."""
        whole = (*key, self._models[position])
        if whole not in self._known:
            self._known[whole] = answer()
        found: Answer = self._known[whole]
        return found

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward. The bytes of layers that are recomputed together stand under the number
        of the first."""
        named = (self._kept_of(group, micro_batch).items() for group in self.recompute.groups())
        return {name: size for group in named for name, size in group}

    def _kept_of(self, group: range, micro_batch: MicroBatch) -> dict[str, int]:
        (number, layer), asked = self.layers[group.start], self.recompute.layers[group.start]
        if asked.full:
            slices = self.recompute.slices_inputs
            return {str(number): kept_of_group(self._of(group), micro_batch, asked, slices)}
        kept = self._once(("kept", micro_batch), group.start, lambda: kept_of_layer(layer, micro_batch, asked))
        return {join(str(number), name): size for name, size in kept.items()}

    def _of(self, group: range) -> list[AnyLayer]:
        return [layer for _, layer in self.layers[group.start : group.stop]]

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the saved activations of offloaded modules, which lie in host memory where the device has memory of
        its own. The bytes that `kept_bytes` gives for one path count all or, where they are fewer than those of the
        smallest tensor that goes there, not at all."""
        least = self.recompute.smallest_offloaded * micro_batch.item_size
        return sum(
            size
            for group in self.recompute.groups()
            for name, size in self._kept_of(group, micro_batch).items()
            if size >= least and self.recompute.layers[group.start].offloads(name.partition(".")[2])
        )

    def bytes_in_backward(self, micro_batch: MicroBatch) -> int:
        """The most bytes that the layers keep at once in the backward while one of them, or a part of it, runs again:
        those that it and the layers before it keep anyway, those that its second run keeps, and two tensors of the size
        of its input, for an output and its gradient. Layers that run again together count as one. Parts of which the
        output alone is computed again (norms, activations) do not count; 0 if nothing else runs again."""
        before = most = 0
        for group in self.recompute.groups():
            layer = self.layers[group.start][1]
            before += sum(self._kept_of(group, micro_batch).values())
            again = self._kept_by_second_run(group, micro_batch)
            most = max(most, before + again + 2 * layer.input_bytes(micro_batch)) if again else most
        return most

    def _kept_by_second_run(self, group: range, micro_batch: MicroBatch) -> int:
        layers, asked, slices = self._of(group), self.recompute.layers[group.start], self.recompute.slices_inputs
        if any(layer is not layers[0] for layer in layers):
            return kept_by_second_run(layers, micro_batch, asked, slices)
        key = ("second run", micro_batch, len(group))
        return self._once(key, group.start, lambda: kept_by_second_run(layers, micro_batch, asked, slices))

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of all layers, without their numbers in names; marked where the backward runs them again."""
        for position in range(len(self.layers)):
            yield from self._once(
                ("operations", micro_batch), position, partial(self._operations_of, position, micro_batch)
            )

    def _operations_of(self, position: int, micro_batch: MicroBatch) -> list[Operation]:
        layer, asked = self.layers[position][1], self.recompute.layers[position]
        return [replace(one, runs_again=runs_again(asked, one.name)) for one in layer.operations(micro_batch)]

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of all layers, those of second runs in the backward included, without layers' numbers in names;
        and those that gather the slices of inputs of layers that run again whole."""
        for position in range(len(self.layers)):
            yield from self._once(
                ("messages", micro_batch), position, partial(self._messages_of, position, micro_batch)
            )
        for group in self.recompute.groups():
            if self.recompute.layers[group.start].full:
                yield from input_messages(self.layers[group.start][1], micro_batch, self.recompute.slices_inputs)

    def _messages_of(self, position: int, micro_batch: MicroBatch) -> list[Message]:
        layer, asked = self.layers[position][1], self.recompute.layers[position]
        return [*layer.messages(micro_batch), *messages_run_again(layer, micro_batch, asked)]
