"""Layers on plain arrays, on the host, for one new token of each text: they compute what the cells do, without a tensor
for each operator, whose launch takes longer than most of them compute for a token.

A cell that is not known here (such as experts, latent attention, adapters) is called as it is. b batch, h hidden, g
key/value groups, d head size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, from_numpy, nn

from parallel_core.attention.rotary import Rotary
from parallel_core.numerics.dtypes import Array
from pynative.generation.host_products import Product, shared
from pynative.kernels.block import AttentionRule
from pynative.kernels.host.cache import attend, bias_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import run
from pynative.key_value_cache import Cache
from pynative.memory.arrays import array_of
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.tensor_parallel.products import PLAIN
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.embedding import Embedding
from pynative.transformer.layer import ParallelTransformerLayer
from pynative.transformer.norm import LayerNorm, RMSNormOfAllHeads

SHARED_KEYS = 4 * 1024 * 1024
"""Least size in bytes of a layer's keys at which threads share attention; see `host_products` for the reason."""

Part = Callable[[Array], Array]
"""A function from an array [b, h] to one of this shape; a norm takes any array, over its last axis."""


def array(parameter: Tensor | None) -> Array | None:
    """The values of a parameter as an array, as `array_of` gives them; None for None."""
    return None if parameter is None else array_of(parameter)


def norm(cell: nn.Cell | None) -> Part | None:
    """A function that norms an array over its last axis as the cell, a LayerNorm or RMSNorm, does; None for None."""
    if cell is None:
        return None
    scale, epsilon = array_of(cell.weight) + np.float32(cell.zero_centered), np.float32(cell.epsilon)
    shift = array_of(cell.bias) if isinstance(cell, LayerNorm) else None
    size = np.float32(len(scale))

    def normed(x: Array) -> Array:
        if shift is not None:
            x = x - x.mean(-1, keepdims=True)
        squares = np.einsum("...h,...h->...", x, x)[..., None]
        y = x / np.sqrt(squares / size + epsilon)
        y *= scale
        return y if shift is None else y + shift

    return normed


def embedding(cell: Embedding) -> Callable[[Array, Array], Array]:
    """A function (tokens [b], positions [b]) -> [b, h] that embeds as the cell does on one tensor-parallel rank,
    outside of training."""
    words, normed, scale = array_of(cell.word_embeddings.weight), norm(cell.norm), np.float32(cell.scale)
    places = None if cell.position_embeddings is None else array_of(cell.position_embeddings.weight)

    def embedded(tokens: Array, positions: Array) -> Array:
        x = words[tokens] if normed is None else normed(words[tokens])
        if places is not None:
            x = x + places[positions]
        return x if scale == 1 else x * scale

    return embedded


class Turned:
    """Rotary embedding for one token of each text, at positions int32 [b]."""

    def __init__(self, rotary: Rotary, positions: Array) -> None:
        cos, sin = rotary.tables(tuple(range(p, p + 1) for p in positions.tolist()))
        self.width, pairs = cos.shape[1], cos.shape[1] // 2
        shape, self.axis = ((pairs, 2), -1) if rotary.interleaved else ((2, pairs), -2)
        self.cos, self.sin = (table.reshape(len(table), 1, 1, *shape) for table in (cos, sin))
        np.moveaxis(self.sin, self.axis, 0)[0] *= -1

    def __call__(self, x: Array) -> None:
        """Rotate the first elements of each head of x [b, g, heads of a group, d] in place, as many as the tables of
        angles have (`width`)."""
        turning = x[..., : self.width]
        pairs = turning.reshape(*turning.shape[:-1], *self.cos.shape[-2:])
        exchanged = (pairs[..., ::-1] if self.axis == -1 else pairs[..., ::-1, :]) * self.sin
        exchanged += pairs * self.cos
        turning[:] = exchanged.reshape(turning.shape)


class Step:
    """The values that layers share in a forward of new tokens: biases of scores, and rotary embeddings."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.texts = cache, np.arange(len(cache.lengths))
        self._biases: dict[tuple[int, AttentionRule], Array | None] = {}
        self._turned: dict[Rotary, Turned] = {}

    def bias(self, layer: int, rule: AttentionRule, heads: int) -> Array | None:
        """The terms that are added to scores of the layer of this number, float32 [b, 1 or heads, slots in use]: the
        model's bias, and -inf for keys that a query does not see; None without such a bias if every key is seen.
        Computed once for layers with equally many slots and the same rule."""
        key = self.cache.layers[layer].slots, rule
        if key not in self._biases:
            self._biases[key] = bias_of(self.cache.ages(layer), rule, heads)
        return self._biases[key]

    def turning(self, rotary: Rotary) -> Turned:
        """The rotary embedding at the new tokens' positions, cached."""
        if rotary not in self._turned:
            self._turned[rotary] = Turned(rotary.of_text(int(self.cache.lengths.max())), self.cache.positions[0])
        return self._turned[rotary]


class Decoder:
    """The layers of a stage on arrays, for one new token of each text. It computes models for which `can` is true, with
    tensor-parallel size 1 and a float32 residual; the cache already holds the earlier tokens."""

    def __init__(self, model: nn.Cell, cache: Cache) -> None:
        self.cache, self.model = cache, model
        self.kept: dict[int, list[Array]] = {}
        self.embedding = embedding(model.language_model.embedding) if model.pre_process else None
        decoder = model.language_model.decoder
        self.layers = [self._layer(layer) for layer in decoder.layers.cells()]
        self.final_norm = norm(decoder.final_layernorm)
        head = model.language_model.output_layer
        self.head = None
        if head is not None:
            shared = model.share_embeddings_and_output_weights
            weight = model.shared_embedding_or_output_weight() if shared else head.weight
            self.head = self._product(weight, head.bias)

    @staticmethod
    def can(model: nn.Cell) -> bool:
        """Whether a model computes in float32, no linear of it rounds operands to fewer bits, all its layers are
        ParallelTransformerLayers (no subclass) that need nothing but hidden states (no tokens' ids, no keys of another
        layer), and its parameters are float32 and none cut by ZeRO stage 3."""
        decoder = model.language_model.decoder
        if model.config.compute_dtype != "float32" or decoder.reads_tokens or decoder.layers.shares_keys:
            return False
        are_ours = all(type(layer) is ParallelTransformerLayer for layer in decoder.layers.cells())
        are_plain = all(getattr(cell, "products", PLAIN) is PLAIN for _, cell in model.cells_and_names())
        parameters = list(model.get_parameters())
        is_held = all(array_of(p).dtype == np.float32 and not p.meta.is_cut for p in parameters)
        return are_ours and are_plain and is_held

    def __call__(self, tokens: Array) -> Array:
        """Hidden states [b, h] of the new tokens int32 [b]; a later stage starts from its input tensor [1, b, h]."""
        self.step = Step(self.cache)
        if self.embedding is None:
            x = array_of(self.model.language_model.decoder.input_tensor)[0]
        else:
            x = self.embedding(tokens, self.cache.positions[0])
        for layer in self.layers:
            x = layer(x)
        return x if self.final_norm is None else self.final_norm(x)

    def logits(self, x: Array) -> Array:
        """Logits [b, v] of hidden states [b, h], on the last stage."""
        config, head = self.model.config, self.model.language_model.output_layer
        assert self.head is not None, "only the last stage has a head"
        y = np.array(self.head(x.T).T, order="C")
        if head.scale != 1.0:
            y *= np.float32(head.scale)
        cap = config.scales.logit_cap
        return y if cap is None else np.float32(cap) * np.tanh(y / np.float32(cap))

    def _product(self, weight: Tensor, bias: Tensor | None) -> Product:
        return Product(array_of(weight), array(bias), len(self.cache.lengths))

    def _linear(self, cell: nn.Cell) -> Product:
        return self._product(cell.weight, cell.bias)

    def _layer(self, cell: nn.Cell) -> Part:
        after_norm = cell.residual_after_norm
        parts = ((branch, getattr(cell, branch.sublayer)) for branch in cell.branches)
        halves = [
            (
                norm(getattr(cell, branch.norm, None)),
                self._attention(part) if branch.mixes else self._feed_forward(part),
                norm(getattr(cell, branch.norm_after, None)),
                cell.weights[branch.sublayer],
            )
            for branch, part in parts
        ]

        def layer(x: Array) -> Array:
            for first, part, last, (weight, scale) in halves:
                normed = x if first is None else first(x)
                y = part(normed)
                y = y if last is None else last(y)
                residual = normed if after_norm else x
                x = (residual if weight == 1 else residual * np.float32(weight)) + (
                    y if scale == 1 else y * np.float32(scale)
                )
            return x

        return layer

    def _attention(self, cell: nn.Cell) -> Part:
        if type(cell) is not ParallelAttention or cell.output_gate or _is_adapted(cell.linear_qkv, cell.linear_proj):
            return _as_it_is(cell)
        if isinstance(cell.q_layernorm, RMSNormOfAllHeads):
            return _as_it_is(cell)
        core, number = cell.core_attention, cell.core_attention.layer_number
        heads, groups, size, rule = cell.heads, cell.groups, cell.head_size, core.rule
        into, out = self._linear(cell.linear_qkv), self._linear(cell.linear_proj)
        prepare, sinks = self._prepared(cell), array(core.softmax_offset)

        def attention(x: Array) -> Array:
            rows = into(x.T).T.reshape(len(x), groups, -1, size)
            for change in prepare:
                change(rows)
            keys, values = self._kept(number, rows[:, :, -2], rows[:, :, -1])
            queries, bias = rows[:, :, :-2].reshape(len(x), heads, size), self.step.bias(number, rule, heads)
            seen = np.empty(queries.shape, np.float32)

            def of(start: int, stop: int) -> None:
                """Compute attention for the key/value groups start..stop-1 and their query heads."""
                own, chosen = slice(start * heads // groups, stop * heads // groups), slice(start, stop)
                terms = bias if bias is None or bias.shape[1] == 1 else bias[:, own]
                own_sinks = None if sinks is None else sinks[own]
                seen[:, own] = attend(queries[:, own], keys[:, :, chosen], values[:, :, chosen], terms, rule, own_sinks)

            run(of, shared(groups, keys.nbytes, SHARED_KEYS))
            return out(seen.reshape(len(x), -1).T).T

        return attention

    def _prepared(self, cell: ParallelAttention) -> list[Callable[[Array], None]]:
        """The functions that norm and rotate queries and keys, in the cell's order. Each changes the rows of linear_qkv
        [b, g, heads of a group, d] in place."""
        norms, rotary = (norm(cell.q_layernorm), norm(cell.k_layernorm)), cell.rotary

        def normed(rows: Array) -> None:
            for part, one in zip((rows[:, :, :-2], rows[:, :, -2]), norms, strict=True):
                if one is not None:
                    part[:] = one(part)

        def turned(rows: Array) -> None:
            if rotary is not None:
                self.step.turning(rotary)(rows[:, :, :-1])

        return [turned, normed] if cell.norms_after_rotary else [normed, turned]

    def _kept(self, number: int, *new: Array) -> list[Array]:
        """The layer's cached arrays [slots in use, b, ...], after its new keys and values [b, ...] were written
        there."""
        own, used = self.cache.layers[number], len(self.cache.ages(number))
        slots = self.cache.positions[0] % own.slots
        if number not in self.kept:
            self.kept[number] = [array_of(tensor) for tensor in own.kept]
        kept = self.kept[number]
        for memory, rows in zip(kept, new, strict=True):
            memory[slots, self.step.texts] = rows
        return [memory[:used] for memory in kept]

    def _feed_forward(self, cell: nn.Cell) -> Part:
        if type(cell) is not ParallelMLP or _is_adapted(cell.linear_fc1, cell.linear_fc2):
            return _as_it_is(cell)
        into, out, operator = self._linear(cell.linear_fc1), self._linear(cell.linear_fc2), cell.operator

        def feed_forward(x: Array) -> Array:
            forth = into(x.T)
            activated = np.empty(out.x.shape, np.float32)
            # as one row, because gated activations expect both halves in it
            ENGINE.activation(operator, forth.reshape(1, -1), None, activated.reshape(1, -1))
            return out(activated).T

        return feed_forward


def _is_adapted(*linears: nn.Cell) -> bool:
    return any(linear.adapter is not None for linear in linears)


def _as_it_is(cell: nn.Cell) -> Part:
    """A function on arrays [b, h] that calls the cell itself with tensors."""

    def called(x: Array) -> Array:
        output, bias = cell(from_numpy(np.ascontiguousarray(x)[None]))
        y = array_of(output)[0]
        return y if bias is None else y + array_of(bias)

    return called
