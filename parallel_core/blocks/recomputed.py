"""Layers of which a part is computed again in the backward pass: bytes that they keep, messages that are sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallel_core.blocks.latent_attention import LatentAttention
from parallel_core.blocks.layer import Layer
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.messages import Message
from parallel_core.recompute import FIRST_LINEAR, OUTPUT_DROPPED, UP_PROJECTIONS, LayerRecompute, path_in_layer

_NORM_OF = {"self_attention": "input_layernorm", "mlp": "pre_mlp_layernorm"}
"""Half of a layer -> the norm of its input, whose result has the residual stream's type."""


def kept_of_layer(layer: Layer, micro_batch: MicroBatch, asked: LayerRecompute) -> dict[str, int]:
    """Name of a submodule -> bytes, as `Block.kept_bytes`, of a layer that is not computed again whole.

    A part that is computed again keeps its input, and what its collectives gave where they are not run again.
    """
    kept, normed = layer.kept_bytes(micro_batch), input_bytes(layer, micro_batch)
    for module in asked.modules:
        if module in _NORM_OF:
            kept = {name: size for name, size in kept.items() if not name.startswith(f"{module}.")}
        if half := _half_begun(layer, module):
            first, *others = _first_linears(layer, half)
            kept |= {first: normed, **dict.fromkeys(others, 0)}
    for half, norm in _NORM_OF.items():
        if norm in asked.modules:
            kept |= dict.fromkeys(_first_linears(layer, half), 0)
    core = layer.self_attention.core_attention
    changes = {
        "self_attention.core_attention": {
            **dict.fromkeys(_below(kept, "self_attention.core_attention"), 0),
            "self_attention.core_attention": core.input_bytes(micro_batch),
        },
        "mlp.linear_fc1": {"mlp.activation": 0},
        "mlp.activation": {"mlp.linear_fc2": 0},
        "moe.experts.activation": {"mlp.experts.linear_fc2": 0},
        "moe": {**dict.fromkeys(_below(kept, "mlp"), 0), "mlp.router": normed},
        "moe.shared_experts": dict.fromkeys(_below(kept, "mlp.shared_experts")[1:], 0),
    }
    for module in asked.modules:
        kept |= changes.get(module, {})
    if UP_PROJECTIONS in asked.modules and isinstance(layer.self_attention, LatentAttention):
        kept |= _kept_without_heads(layer.self_attention, kept, micro_batch, asked)
    collectives = collective_bytes(layer, micro_batch, asked)
    inside_parts = [name for name in collectives if any(f"{name}.".startswith(f"{m}.") for m in asked.modules)]
    return {**kept, **{f"{name}.collective": collectives[name] for name in inside_parts}}


def _kept_without_heads(
    attention: LatentAttention, kept: dict[str, int], micro_batch: MicroBatch, asked: LayerRecompute
) -> dict[str, int]:
    """Of core attention whose queries, keys and values are made again, and of what makes them the rotary key. What
    Ulysses exchanged them for is kept nevertheless, unless core attention is run again, too."""
    name, core = "self_attention.core_attention", attention.core_attention
    dropped = core.input_bytes(micro_batch) if micro_batch.context.ulysses == 1 or name in asked.modules else 0
    rotary_key = micro_batch.tokens * attention.rotary_size * micro_batch.item_size
    return {name: kept[name] - dropped, "self_attention.rotary_key": rotary_key}


def kept_of_group(layers: Sequence[Layer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes of layers that are computed again together: the input of the first; with `slices` 1/t of it."""
    collectives = sum(sum(collective_bytes(layer, micro_batch, asked).values()) for layer in layers)
    return input_bytes(layers[0], micro_batch) // input_parts(layers[0], micro_batch, slices) + collectives


def kept_by_second_run(layers: Sequence[Layer], micro_batch: MicroBatch, asked: LayerRecompute, slices: bool) -> int:
    """Bytes that the second run of whole layers, or of a part of one layer, keeps until it was run backwards.

    The part's input is kept already, except by ranks that keep a part of it each.
    """
    layer = layers[0]
    if asked.full:
        has_input = input_parts(layer, micro_batch, slices) == 1
        kept_of_all = sum(sum(each.kept_bytes(micro_batch).values()) for each in layers)
        return kept_of_all - has_input * input_bytes(layer, micro_batch)
    kept = layer.kept_bytes(micro_batch)
    return max(
        (
            _kept_by_part(layer, kept, micro_batch, module) + _kept_of_normed(layer, kept, micro_batch, module, asked)
            for module in asked.modules
        ),
        default=0,
    )


def _kept_of_normed(
    layer: Layer, kept: dict[str, int], micro_batch: MicroBatch, module: str, asked: LayerRecompute
) -> int:
    """Of a norm's result, with which a part begins, what its first linear keeps: what was made again, or in another
    type."""
    half, is_kept_already = _half_begun(layer, module), micro_batch.dtype == micro_batch.residual_dtype
    if half is None or (is_kept_already and _NORM_OF[half] not in asked.modules):
        return 0
    return sum(kept[name] for name in _first_linears(layer, half))


def _half_begun(layer: Layer, module: str) -> str | None:
    """The half of a layer that a module begins: a norm's result is its input. Where queries are not compressed, what
    makes heads of them does."""
    attention = layer.self_attention
    if isinstance(attention, LatentAttention) and module == UP_PROJECTIONS:
        return "self_attention" if attention.first_linears[0] in attention.up_projections else None
    return "mlp" if module == FIRST_LINEAR else module if module in _NORM_OF else None


def _kept_by_part(layer: Layer, kept: dict[str, int], micro_batch: MicroBatch, module: str) -> int:
    """Of a norm or an activation nothing but the result is made again, while one operator needs it."""
    if module in OUTPUT_DROPPED:
        return 0
    if module == "self_attention.core_attention":
        of_all = sum(kept[name] for name in _below(kept, module))
        return of_all - layer.self_attention.core_attention.input_bytes(micro_batch)
    if module in ("moe", "moe.shared_experts"):
        return sum(kept[name] for name in _below(kept, path_in_layer(module))[1:])
    if module == UP_PROJECTIONS:
        return layer.self_attention.core_attention.input_bytes(micro_batch)
    inside = ("mlp.activation", "mlp.linear_fc2") if module == FIRST_LINEAR else _inside(layer, kept, module)
    return sum(kept[name] for name in inside)


def _inside(layer: Layer, kept: dict[str, int], half: str) -> tuple[str, ...]:
    """Of a half of a layer, what it keeps besides its input."""
    first = _first_linears(layer, half)
    return tuple(name for name in kept if name.startswith(f"{half}.") and name not in first)


def _below(kept: dict[str, int], path: str) -> list[str]:
    return [name for name in kept if f"{name}.".startswith(f"{path}.")]


def _first_linears(layer: Layer, half: str) -> tuple[str, ...]:
    if half == "mlp":
        return (FIRST_LINEAR,)
    return tuple(f"{half}.{name}" for name in layer.self_attention.first_linears)


def input_bytes(layer: Layer, micro_batch: MicroBatch) -> int:
    """What a layer receives: the residual stream."""
    return micro_batch.tokens_between * layer.hidden_size * micro_batch.residual_item_size


def input_parts(layer: Layer, micro_batch: MicroBatch, slices: bool) -> int:
    """How many tensor-parallel ranks share the input of layers that are computed again whole."""
    return micro_batch.tensor if slices and layer.hidden_size % micro_batch.tensor == 0 else 1


def messages_run_again(layer: Layer, micro_batch: MicroBatch, asked: LayerRecompute) -> Iterator[Message]:
    """The collectives of the forward pass that the second run of a layer's parts repeats, in the backward pass."""
    paths = [path for module in asked.modules for path in _paths_of(layer, module)]
    for one in layer.messages(micro_batch):
        repeated = asked.full or any(f"{one.what}.".startswith(f"{path}.") for path in paths)
        if repeated and not one.backward and one.what not in asked.kept_collectives:
            yield replace(one, backward=True)


def _paths_of(layer: Layer, module: str) -> tuple[str, ...]:
    """The submodules that a module runs."""
    if module != UP_PROJECTIONS:
        return (path_in_layer(module),)
    attention = layer.self_attention
    names = attention.up_projections if isinstance(attention, LatentAttention) else ()
    return tuple(f"self_attention.{name}" for name in names)


def input_messages(layer: Layer, micro_batch: MicroBatch, slices: bool) -> Iterator[Message]:
    """The ranks' parts of the input of layers that are computed again whole, put together for the second run."""
    parts = input_parts(layer, micro_batch, slices)
    if parts > 1:
        yield from micro_batch.tensor_message("all_gather", input_bytes(layer, micro_batch) // parts, backward=True)


def collective_bytes(layer: Layer, micro_batch: MicroBatch, asked: LayerRecompute) -> dict[str, int]:
    """Linear -> bytes of what its collective gives, where it is kept: whole hidden states that enter a region, those
    between two regions that leave one."""
    if micro_batch.tensor == 1:
        return {}
    linears = {
        f"{half}.{name}": part
        for half in _NORM_OF
        for name, part in layer.submodules()[half].submodules().items()
        if isinstance(part, Linear)
    }
    sizes = {}
    for name in asked.kept_collectives:
        enters = linears[name].is_column
        tokens = micro_batch.tokens if enters else micro_batch.tokens_between
        if not enters or micro_batch.sequence.tensor > 1:
            sizes[name] = tokens * layer.hidden_size * micro_batch.item_size
    return sizes
