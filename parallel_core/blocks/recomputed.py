"""Layers that run again in the backward pass, whole or in parts: bytes that they keep, messages that are sent again."""

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
    """Path -> bytes kept for the backward by a layer that does not run again whole, as `Block.kept_bytes`.

    A part that runs again keeps its input alone, or what `Part.kept` of its kind says; of a part whose output alone is
    computed again, all but that is kept. Under "<path of a linear>.collective": the result of a collective that a
    second run does not repeat.
    """
    kept, normed = layer.kept_bytes(micro_batch), layer.normed_bytes(micro_batch)
    paths = [part.path for part in asked.parts]
    for part in sorted(asked.parts, key=lambda part: part.again):
        kept = part.kept(kept, normed, micro_batch, paths)
    collectives = collective_bytes(layer, micro_batch, asked)
    inside_parts = [name for name in collectives if any(part.covers(name) for part in asked.parts)]
    return {**kept, **{f"{name}.collective": collectives[name] for name in inside_parts}}


def kept_of_group(layers: Sequence[AnyLayer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes that layers that run again together keep: the input of the first (with `slices` a slice of it, if
    `input_parts` cuts it), outputs of collectives that are not run again, and what they keep for other layers."""
    collectives = sum(sum(collective_bytes(layer, micro_batch, asked).values()) for layer in layers)
    of_input = layers[0].input_bytes(micro_batch) // input_parts(layers[0], micro_batch, slices)
    return of_input + collectives + sum(layer.kept_for_others(micro_batch) for layer in layers)


def kept_by_second_run(layers: Sequence[AnyLayer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes that the second run of recomputed layers or parts saves until its backward has run. If whole layers run
    again (`asked.full`): those of all of `layers` together. Else parts of the one layer run again, each by itself:
    those of the part with the most; 0 without parts.

    What whole layers keep for other layers is not among them, since it is kept already, and for the same reason not the
    input of the first, except where each rank keeps a slice of it.
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
    """Bytes of a norm's output that the first linear of a part keeps: a copy where the norm runs again, or one in
    another type; else 0."""
    is_kept_already = micro_batch.dtype == micro_batch.residual_dtype and part.norm not in asked.modules
    return 0 if part.norm is None or is_kept_already else sum(kept[name] for name in part.holders)


def input_parts(layer: AnyLayer, micro_batch: MicroBatch, slices: bool) -> int:
    """The number of slices into which the input of layers that are recomputed whole is cut over the tensor-parallel
    ranks, each of which keeps one; 1 without `slices`, or where the number of ranks does not divide the width of the
    input: each rank keeps all of it."""
    return micro_batch.tensor if slices and layer.residual_width % micro_batch.tensor == 0 else 1


def messages_run_again(layer: Block, micro_batch: MicroBatch, asked: LayerRecompute) -> Iterator[Message]:
    """The layer's messages of the forward that a second run, of the layer or of its parts, sends again, as messages of
    the backward pass."""
    for one in layer.messages(micro_batch):
        if runs_again(asked, one.what) and not one.backward and one.what not in asked.kept_collectives:
            yield replace(one, backward=True)


def runs_again(asked: LayerRecompute, path: str) -> bool:
    """Whether the block at a path in the layer is computed again in the backward, be it only for its output."""
    return asked.full or any(part.covers(path) for part in asked.parts)


def input_messages(layer: AnyLayer, micro_batch: MicroBatch, slices: bool) -> Iterator[Message]:
    """Messages that gather the ranks' slices of the input of layers that run again whole; none where it is not
    sliced."""
    parts = input_parts(layer, micro_batch, slices)
    if parts > 1:
        yield from micro_batch.tensor_message("all_gather", layer.input_bytes(micro_batch) // parts, backward=True)


def collective_bytes(layer: AnyLayer, micro_batch: MicroBatch, asked: LayerRecompute) -> Sizes:
    """Path in `asked.kept_collectives` of a linear -> bytes of its collective's output, which are kept if the linear
    runs again: of a column-parallel linear its gathered input, with sequence parallelism; of a row-parallel one its
    reduced output. {} on one tensor-parallel rank."""
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
