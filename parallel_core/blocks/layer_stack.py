"""Layers one after the other, some of which are computed again in the backward pass."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class LayerStack(Block):
    """Layers under their global numbers, 0-based."""

    layers: tuple[tuple[int, AnyLayer], ...]
    recompute: ChunkRecompute

    def submodules(self) -> dict[str, Block]:
        return {str(number): layer for number, layer in self.layers}

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """The bytes that are kept. Layers that are recomputed together are named by the first of them."""
        named = (self._kept_of(group, micro_batch).items() for group in self.recompute.groups())
        return {name: size for group in named for name, size in group}

    def _kept_of(self, group: range, micro_batch: MicroBatch) -> dict[str, int]:
        (number, layer), asked = self.layers[group.start], self.recompute.layers[group.start]
        if asked.full:
            slices = self.recompute.slices_inputs
            return {str(number): kept_of_group(self._of(group), micro_batch, asked, slices)}
        return {join(str(number), name): size for name, size in kept_of_layer(layer, micro_batch, asked).items()}

    def _of(self, group: range) -> list[AnyLayer]:
        return [layer for _, layer in self.layers[group.start : group.stop]]

    def offloaded_bytes(self, micro_batch: MicroBatch) -> int:
        """The bytes of saved activations that lie in host memory where the device has memory of its own."""
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
            most = max(most, before + again + 2 * layer.input_bytes(micro_batch)) if again else most
        return most

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """Without the layers' numbers; marked where the backward computes the forward again."""
        for (_, layer), asked in zip(self.layers, self.recompute.layers, strict=True):
            for one in layer.operations(micro_batch):
                yield replace(one, runs_again=runs_again(asked, one.name))

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Without the layers' numbers, so that equal messages can be counted together."""
        for (_, layer), asked in zip(self.layers, self.recompute.layers, strict=True):
            yield from layer.messages(micro_batch)
            yield from messages_run_again(layer, micro_batch, asked)
        for group in self.recompute.groups():
            if self.recompute.layers[group.start].full:
                yield from input_messages(self.layers[group.start][1], micro_batch, self.recompute.slices_inputs)
