"""Layers of which a part is computed again in the backward pass: bytes that they keep, messages that are sent again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallel_core.blocks.block import Block
from parallel_core.blocks.layer import AnyLayer
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.messages import Message
from parallel_core.recompute.parts import Part, Sizes
from parallel_core.recompute.plan import LayerRecompute


def kept_of_layer(layer: AnyLayer, micro_batch: MicroBatch, asked: LayerRecompute) -> Sizes:
    """Name of a submodule -> bytes, as `Block.kept_bytes`, of a layer that is not computed again whole.

    A part that is computed again keeps its input, and what its collectives gave where they are not run again.
    """
    kept, normed = layer.kept_bytes(micro_batch), layer.normed_bytes(micro_batch)
    paths = [part.path for part in asked.parts]
    for part in sorted(asked.parts, key=lambda part: part.again):
        kept = part.kept(kept, normed, micro_batch, paths)
    collectives = collective_bytes(layer, micro_batch, asked)
    inside_parts = [name for name in collectives if any(part.covers(name) for part in asked.parts)]
    return {**kept, **{f"{name}.collective": collectives[name] for name in inside_parts}}


def kept_of_group(layers: Sequence[AnyLayer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes of layers that are computed again together: the input of the first; with `slices` 1/t of it; and what they
    keep for other layers."""
    collectives = sum(sum(collective_bytes(layer, micro_batch, asked).values()) for layer in layers)
    of_input = layers[0].input_bytes(micro_batch) // input_parts(layers[0], micro_batch, slices)
    return of_input + collectives + sum(layer.kept_for_others(micro_batch) for layer in layers)


def kept_by_second_run(layers: Sequence[AnyLayer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes that the second run of whole layers, or of a part of one layer, keeps until it was run backwards.

    The part's input is kept already, except by ranks that keep a part of it each.
    """
    if asked.full:
        has_input = input_parts(layers[0], micro_batch, slices) == 1
        kept_of_all = sum(
            sum(each.kept_bytes(micro_batch).values()) - each.kept_for_others(micro_batch) for each in layers
        )
        return kept_of_all - has_input * layers[0].input_bytes(micro_batch)
    kept = layers[0].kept_bytes(micro_batch)
    return max(
        (
            part.kept_by_second_run(kept, micro_batch) + _kept_of_normed(part, kept, micro_batch, asked)
            for part in asked.parts
        ),
        default=0,
    )


def _kept_of_normed(part: Part, kept: Sizes, micro_batch: MicroBatch, asked: LayerRecompute) -> int:
    """The bytes that the first linear of a part keeps of a norm's output: a recomputed copy, or one in another type."""
    is_kept_already = micro_batch.dtype == micro_batch.residual_dtype and part.norm not in asked.modules
    return 0 if part.norm is None or is_kept_already else sum(kept[name] for name in part.holders)


def input_parts(layer: AnyLayer, micro_batch: MicroBatch, slices: bool) -> int:
    """The number of tensor-parallel ranks that share the input of layers that are recomputed whole."""
    return micro_batch.tensor if slices and layer.residual_width % micro_batch.tensor == 0 else 1


def messages_run_again(layer: Block, micro_batch: MicroBatch, asked: LayerRecompute) -> Iterator[Message]:
    """The collectives of the forward pass that the second run of a layer's parts repeats, in the backward pass."""
    for one in layer.messages(micro_batch):
        if runs_again(asked, one.what) and not one.backward and one.what not in asked.kept_collectives:
            yield replace(one, backward=True)


def runs_again(asked: LayerRecompute, path: str) -> bool:
    """Whether the backward computes what stands at a path in the layer again."""
    return asked.full or any(part.covers(path) for part in asked.parts)


def input_messages(layer: AnyLayer, micro_batch: MicroBatch, slices: bool) -> Iterator[Message]:
    """The ranks' parts of the input of layers that are computed again whole, put together for the second run."""
    parts = input_parts(layer, micro_batch, slices)
    if parts > 1:
        yield from micro_batch.tensor_message("all_gather", layer.input_bytes(micro_batch) // parts, backward=True)


def collective_bytes(layer: AnyLayer, micro_batch: MicroBatch, asked: LayerRecompute) -> Sizes:
    """Linear -> bytes of what its collective gives, where it is kept: whole hidden states that enter a region, those
    between two regions that leave one."""
    if micro_batch.tensor == 1:
        return {}
    sizes = {}
    for path in asked.kept_collectives:
        linear = layer.at(path)
        assert isinstance(linear, Linear), path
        tokens = micro_batch.tokens if linear.is_column else micro_batch.tokens_between
        if not linear.is_column or micro_batch.sequence.tensor > 1:
            width = linear.input_size if linear.is_column else linear.output_size
            sizes[path] = tokens * width * micro_batch.item_size
    return sizes
