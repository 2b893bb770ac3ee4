"""A call of every operator of the contract: rows for several blocks, sizes that are multiples of nothing.

`CALLS[name](new)` calls the operator on tensors that `new` makes, and returns all that it gives or fills: results, of
recorded operators the gradients of all inputs, of in-place ones what they changed.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.attention.score_form import ScoreForm, alibi_slopes
from parallel_core.context import Run
from parallel_core.moe.routing import Noise, RoutingRule
from parallel_core.numerics.float8_recipes import GRADIENT, Recipe
from parallel_core.numerics.hyper_connections import StreamRule
from pynative import kernels
from pynative.kernels.block import AttentionRule, Scores
from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.memory.arrays import array_of
from pynative.tape.autograd import Function, backward, leaf, recording, take_gradient
from tests.support import kernels as support
from tests.support.kernels import outputs_of

Array = np.ndarray
normal, upstream = cache(support.normal), cache(support.upstream)


class New(Protocol):
    """A function that makes the tensors of a call, so that a test decides their memory and type."""

    def __call__(self, array: Array, dtype: ms.Type | None = None) -> Tensor:
        """A tensor of these values: floating-point ones in `dtype`, or if None in the type that the test tries."""


Call = Callable[[New], Any]


class _Given(Function):
    """An identity on the tape over the same memory: a leaf's gradient cannot come from two uses, the result's can."""

    @staticmethod
    def forward(ctx, x):
        return from_numpy(array_of(x))

    @staticmethod
    def backward(ctx, dy):
        return from_numpy(array_of(dy).copy())


def _recorded(operator: Callable, *inputs: Array, wide: Sequence[Array] = ()) -> Call:
    """A call of a recorded operator: its results, and gradients of its inputs, of which `wide` ones are
    always float32."""

    def call(new: New) -> list[Tensor]:
        leaves = [*(leaf(new(x)) for x in inputs), *(leaf(new(x, ms.float32)) for x in wide)]
        with recording():
            results = outputs_of(operator(*map(_Given.apply, leaves)))
            backward(results, [new(upstream(y.shape, i), y.dtype) for i, y in enumerate(results)])
        return [*results, *map(take_gradient, leaves)]

    return call


S, B, H, WIDE = 300, 7, 129, 130
X, Y, GATED = normal(S, B, H), normal(S, B, H, seed=1), normal(S, B, WIDE)
ROWS, UPSTREAM_ROWS = normal(1100, 131), normal(1100, 257, seed=1)
VECTOR, SHIFT = normal(H, seed=1), normal(H, seed=2)
WEIGHT, BIAS = normal(257, H), normal(257)
L = 150
ANGLES = normal(L, 16, seed=3)
HEADS = [normal(L, 2, n, 17, seed=n) for n in (4, 2, 2)]
EQUAL_HEADS = [normal(L, 2, 3, 17, seed=n) for n in range(3)]
OUT = normal(L, 2, 4 * 17, seed=9)
KEY = (3, 1)
INDEXER = normal(L, 2, 3, 9), normal(L, 2, 9, seed=1), normal(L, 2, 3, seed=2)
SLOTS = np.array([[3, -1, 0, 7, 9, 299, 1], [4, 2, -1, 8, 10, 0, 2]], np.int32)
AGES = np.stack((np.arange(L)[::-1], np.arange(L)[::-1] - 20), 1).astype(np.int32)
COUNTS = (301, 0, 99, 700)
EXPERTS = [normal(257, 131, seed=seed) for seed in range(4)]
LOGITS, VOCABULARY = 3 * normal(S, B, 12, seed=8), 3 * normal(S, 2, 1003)
RULE = RoutingRule(topk=3, sigmoid=True, normalize=True, scale=2.5)
FLAT = 300_001

_generator = np.random.default_rng(2)
IDS = _generator.integers(-50, 150, (S, 8)).astype(np.int32)
TARGETS = _generator.integers(-100, 1200, (S, 2)).astype(np.int32)
CHOSEN = np.argsort(-np.where(np.tri(L, dtype=bool), _generator.random((2, L, L)), -1), axis=-1)[..., :20]
CHOSEN = np.where(np.arange(L)[:, None] >= CHOSEN, CHOSEN, -1).astype(np.int32)
PICKED = np.argsort(_generator.random((S * B, 12)), axis=1)[:, :3].astype(np.int32)
PROBABILITIES = _generator.random((S * B, 3), np.float32)
NOISE = Noise(_generator.random((2, S * B, 12), np.float32), _generator.random((2, S * B), np.float32))
PLACES = _generator.integers(-1, len(ROWS), (900, 3)).astype(np.int32)

BLOCK = Scores(
    scale=0.2, causal=True, mask=None, dropout_rate=0.1, dropout_key=KEY, head_offset=0,
    form=ScoreForm(70, 1.5, alibi_slopes(4)), query_positions=(range(L),), key_positions=(range(L),), seq_length=L,
)  # fmt: skip
ADAM = AdamStep(1e-2, 0.9, 0.95, 1e-8, 0.1, 2, 0.25)
L2 = ADAM._replace(is_decoupled=False)


def _attention(**options: Any) -> Call:
    return _recorded(lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.2, **options)), *HEADS)


def _heads(new: New, heads: Sequence[Array] = HEADS) -> list[Tensor]:
    return [new(x) for x in heads]


def _block(new: New, gradient: bool) -> tuple[Tensor, ...]:
    partial = kernels.attention_block(*_heads(new), BLOCK)
    partial = kernels.attention_block(*_heads(new), BLOCK, partial)
    return kernels.attention_block_gradient(*_heads(new), new(OUT), partial, BLOCK) if gradient else partial


SINKS = np.linspace(-1, 4, 6, dtype=np.float32)


def _sinks(new: New, gradient: bool) -> object:
    """Attention with sinks for four of six heads: its partial result, or with `gradient` the sinks' gradient."""
    partial = kernels.with_sinks(kernels.attention_block(*_heads(new), BLOCK), new(SINKS), 1)
    return kernels.sinks_gradient(partial, new(SINKS), 1, new(OUT)) if gradient else partial


def _indexer_gradient(new: New) -> tuple:
    queries, dkey = Run(range(50, L), range(50, L)), new(np.zeros(INDEXER[1].shape, np.float32), ms.float32)
    target = kernels.attention_target(*_heads(new, EQUAL_HEADS[:2]), new(CHOSEN), queries, 0.2)
    indexer = [new(x) for x in INDEXER]
    return *kernels.indexer_gradient(*indexer, new(CHOSEN), target, queries, 0.5, dkey), dkey


def _cross_entropy(new: New) -> dict[str, Any]:
    """Operator name -> result, for every part of the vocabulary-parallel cross entropy."""
    logits, target = new(VOCABULARY), new(TARGETS)
    statistics = maximum, total, at_target = kernels.softmax_statistics(logits, target)
    addends = kernels.cross_entropy_addends(maximum, maximum, total, at_target)
    loss = kernels.cross_entropy_loss(addends, maximum)
    dloss = new(normal(S, 2, seed=3), ms.float32)
    gradient = kernels.cross_entropy_gradient(logits, maximum, addends, target, 0, dloss)
    return {
        "softmax_statistics": statistics,
        "cross_entropy_addends": addends,
        "cross_entropy_loss": loss,
        "cross_entropy_gradient": gradient,
    }


def _grouped(new: New) -> list[Tensor]:
    return [new(weight) for weight in EXPERTS]


def _in_place(operator: Callable[..., None], count: int, wide: Sequence[int] = ()) -> Call:
    """A call of an operator on `count` flat tensors, float32 at the places `wide`; returns all of them, as any may have
    changed."""

    def call(new: New) -> list[Tensor]:
        flat = [np.abs(normal(FLAT, seed=seed)) for seed in range(count)]
        tensors = [new(x, ms.float32 if place in wide else None) for place, x in enumerate(flat)]
        operator(*tensors)
        return tensors

    return call


def _filled(operator: Callable[..., None], shape: tuple[int, ...]) -> Call:
    """A call of an operator that adds a gradient of this shape to float32 memory; returns that memory."""

    def call(new: New) -> Tensor:
        out = new(normal(*shape, seed=7), ms.float32)
        operator(new, out)
        return out

    return call


def _update(param: Tensor, grad: Tensor, buffer: Tensor) -> None:
    kernels.update_(lambda _, p, g, m: (p - (m * 0.9 + g) * 1e-2, m * 0.9 + g), param, grad, [buffer], 0.25)


DELTA = RecurrenceForm(0.2, delta=True, unit=True)
HEADS_OF_STATES = normal(L, 2, 2, 17), normal(L, 2, 2, 17, seed=1), normal(L, 2, 4, 9)
DECAYS = -np.abs(normal(L, 2, 4, seed=2)), np.abs(normal(L, 2, 4, seed=3)) / 4
LENGTHS = np.array([L, L - 7], np.int32)
ENTRIES = normal(L, 2, 3, 9), normal(21, 2, 9, seed=1), normal(L, 2, 3, seed=2)
SEEN = ((np.arange(L, dtype=np.int32) + 1) // 7)[:, None]
HIDDEN = (np.arange(21) >= SEEN)[None, None]


def _entries(new: New) -> tuple[Tensor, ...]:
    return new(HEADS[0]), new(normal(21, 2, 1, 17, seed=4)), new(HIDDEN)


def _statistics(new: New) -> tuple[Tensor, ...]:
    return tuple(new(np.abs(normal(2, 4, L, seed=seed)), ms.float32) for seed in (5, 6))


STREAMS = StreamRule(2, 3, 1e-3, 1e-5)
CALLS: dict[str, Call] = {
    "linear_forward": lambda new: kernels.linear_forward(new(X), new(WEIGHT), new(BIAS)),
    "linear_input_gradient": lambda new: kernels.linear_input_gradient(new(UPSTREAM_ROWS), new(WEIGHT)),
    "linear_weight_gradient": _filled(
        lambda new, out: kernels.linear_weight_gradient(new(UPSTREAM_ROWS), new(ROWS), out, True), (257, 131)
    ),
    "bias_gradient": _filled(lambda new, out: kernels.bias_gradient(new(UPSTREAM_ROWS), out, True), (257,)),
    "cast": _recorded(lambda x: kernels.cast(x, ms.float16), X),
    "quantised": lambda new: [
        kernels.quantised(new(ROWS), Recipe(scaling, "hybrid").rounding(GRADIENT, summed))
        for scaling in ("tensorwise", "blockwise", "mxfp8")
        for summed in (0, 1)
    ],
    "largest_magnitude": lambda new: kernels.largest_magnitude(new(ROWS)),
    "mxfp4": lambda new: [kernels.mxfp4(new(WEIGHT), axis) for axis in (0, 1)],
    "scale": _recorded(lambda x: kernels.scale(x, 0.3), X),
    "scale_features": _recorded(lambda x: kernels.scale_features(x, np.abs(VECTOR)), X),
    "soft_cap": _recorded(lambda x: kernels.soft_cap(x, 3.0), X),
    "layer_norm": _recorded(lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), X, VECTOR, SHIFT),
    "rms_norm": _recorded(lambda x, w: kernels.rms_norm(x, w, 1e-5, True), X, VECTOR),
    "bias_activation": lambda new: [
        _recorded(lambda x, b, name=name: kernels.bias_activation(x, b, name), x, bias)(new)
        for name, x, bias in (
            ("gelu_tanh", X, VECTOR), ("squared_relu", X, VECTOR), ("geglu_erf", GATED, normal(WIDE)),
        )
    ],
    "split_features": _recorded(lambda x: kernels.split_features(x, (100, 29)), X),
    "fork": _recorded(kernels.fork, X),
    "join_features": _recorded(kernels.join_features, X, GATED),
    "bias_dropout_add": _recorded(lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.1, KEY), X, VECTOR, Y),
    "dropout": _recorded(lambda x: kernels.dropout(x, 0.1, KEY), X),
    "split_qkv": _recorded(lambda x: kernels.split_qkv(x, 3, 2, 17), normal(S, 5, 204)),
    "rotary": lambda new: _recorded(
        lambda x: kernels.rotary(x, new(ANGLES, ms.float32), new(ANGLES, ms.float32), True, 1), HEADS[0]
    )(new),
    "as_heads": _recorded(lambda x: kernels.as_heads(x, 3), X),
    "latent_keys_values": _recorded(
        lambda rows, key: kernels.latent_keys_values(rows, key, 5, 7), GATED, normal(S, B, 1, 11)
    ),
    "attention": lambda new: [
        _attention(**options)(new)
        for options in (
            {"causal": False, "dropout_rate": 0.1, "dropout_key": KEY}, {"form": ScoreForm(70, 1.5, alibi_slopes(4))},
        )
    ],
    "attention_block": lambda new: _block(new, gradient=False),
    "attention_block_gradient": lambda new: _block(new, gradient=True),
    "with_sinks": lambda new: _sinks(new, gradient=False),
    "sinks_gradient": lambda new: _sinks(new, gradient=True),
    "write_slots": lambda new: kernels.write_slots(new(X), new(Y[:2]), SLOTS),
    "cached_attention": lambda new: [
        kernels.cached_attention(new(HEADS[0][:1]), *_heads(new)[1:], AGES, AttentionRule(scale=0.2, form=form), sinks)
        for form in (ScoreForm(), ScoreForm(70, 1.5, alibi_slopes(4)))
        for sinks in (None, new(SINKS[:4]))
    ],
    "choose_keys": lambda new: kernels.choose_keys(*(new(x) for x in INDEXER), 20, (range(L),)),
    "sparse_attention": lambda new: _recorded(
        lambda *heads: kernels.sparse_attention(*heads, new(CHOSEN), 0.2), *EQUAL_HEADS
    )(new),
    "attention_target": lambda new: kernels.attention_target(
        *_heads(new, EQUAL_HEADS[:2]), new(CHOSEN), Run(range(50, L), range(50, L)), 0.2
    ),
    "indexer_gradient": _indexer_gradient,
    "pool_windows": _recorded(
        lambda x, z, b: kernels.pool_windows(x, z, b, 7, 65), GATED, normal(S, B, WIDE, seed=1), normal(7, WIDE)
    ),
    "choose_entries": lambda new: kernels.choose_entries(*(new(x) for x in ENTRIES), 5, SEEN),
    "entries_target": lambda new: kernels.entries_target(*_entries(new), 0.2, *_statistics(new)),
    "entries_gradient": lambda new: kernels.entries_gradient(
        *(new(x) for x in ENTRIES), new(HIDDEN),
        kernels.entries_target(*_entries(new), 0.2, *_statistics(new)), 0.5,
    ),
    "short_convolution": _recorded(
        kernels.short_convolution, normal(L, 2, 131), normal(131, 1, 3), normal(131, seed=1)
    ),
    "recurrent_gates": _recorded(
        kernels.recurrent_gates, normal(L, 2, 4, seed=8), normal(L, 2, 4, seed=9), normal(4), normal(4, seed=1)
    ),
    "linear_recurrence": _recorded(
        lambda q, k, v, decay, rate: kernels.linear_recurrence(q, k, v, decay, rate, DELTA),
        *HEADS_OF_STATES, wide=DECAYS,
    ),
    "add_scaled_heads": _recorded(
        kernels.add_scaled_heads, normal(L, 2, 3, 43), normal(L, 2, 3, 43, seed=1), normal(3)
    ),
    "grouped_rms_norm": _recorded(lambda x, w: kernels.grouped_rms_norm(x, w, 3, 1e-5), X, VECTOR),
    "gate": _recorded(lambda x, z: kernels.gate(x, z, "silu"), X, Y),
    "continued_convolution": lambda new: kernels.continued_convolution(
        new(normal(L, 2, 131)), new(normal(131, 1, 3)), None, new(normal(2, 2, 131)), LENGTHS
    ),
    "continued_recurrence": lambda new: kernels.continued_recurrence(
        *map(new, HEADS_OF_STATES), *(new(x, ms.float32) for x in DECAYS), DELTA,
        new(normal(2, 4, 17, 9), ms.float32), LENGTHS,
    ),
    "repeat_streams": _recorded(lambda x: kernels.repeat_streams(x, 3), X),
    "collapse_streams": _recorded(
        lambda x, *given: kernels.collapse_streams(x, *given, STREAMS), GATED, normal(2, WIDE), normal(2), normal(1)
    ),
    "read_streams": _recorded(
        lambda x, *given: kernels.read_streams(x, *given, STREAMS), GATED, normal(8, WIDE) / 4, normal(8), normal(3)
    ),
    "write_streams": _recorded(kernels.write_streams, GATED, normal(S, B, WIDE // 2), wide=(normal(S, B, 6),)),
    "chunk": lambda new: kernels.chunk(new(X), 0, 1, 3),
    "sequence_first": lambda new: kernels.sequence_first(new(IDS)),
    "take_columns": lambda new: kernels.take_columns(new(X), (range(3, 50), range(70, 71))),
    "place_columns": lambda new: kernels.place_columns(new(X), (range(3, 100), range(110, 142)), 150),
    "pack_heads": lambda new: kernels.pack_heads(_heads(new), 2, (1, 2, 2)),
    "unpack_heads": lambda new: kernels.unpack_heads(new(normal(2 * L, 2, 102)), 2, ((4, 17), (4, 17)), (1, 2)),
    "gather_rows": lambda new: kernels.gather_rows(new(ROWS), PLACES[:, 0], (131,)),
    "sum_rows": lambda new: kernels.sum_rows(new(ROWS), PLACES, (900, 131)),
    "grouped_linear_forward": lambda new: kernels.grouped_linear_forward(new(ROWS), _grouped(new), COUNTS),
    "grouped_linear_input_gradient": lambda new: kernels.grouped_linear_input_gradient(
        new(UPSTREAM_ROWS), _grouped(new), COUNTS
    ),
    "grouped_linear_weight_gradient": lambda new: kernels.grouped_linear_weight_gradient(
        new(UPSTREAM_ROWS), new(ROWS), COUNTS,
        [*(new(w, ms.float32) for w in EXPERTS[:3]), None], [True, False, True, False],
    ),
    "add_grouped_bias": _recorded(
        lambda y, *given: kernels.add_grouped_bias(y, given[:4], COUNTS, given[4]),
        ROWS, *(weight[0] for weight in EXPERTS), wide=(ROWS[:, 0],),
    ),
    "weighted_activation": _recorded(
        lambda x, factors: kernels.weighted_activation(x, factors, "swiglu"),
        UPSTREAM_ROWS[:, :130], wide=(np.abs(ROWS[:, 0]),),
    ),
    "split_rows": _recorded(lambda x: kernels.split_rows(x, (301, 99, 700)), ROWS),
    "join_rows": _recorded(lambda *parts: kernels.join_rows(parts), ROWS, UPSTREAM_ROWS[:, :131]),
    "sigmoid_gate": _recorded(kernels.sigmoid_gate, X, Y, VECTOR[None]),
    "embedding": lambda new: _recorded(lambda w: kernels.embedding(new(IDS), w, 0), normal(101, H))(new),
    **{name: lambda new, name=name: _cross_entropy(new)[name] for name in (
        "softmax_statistics", "cross_entropy_addends", "cross_entropy_loss", "cross_entropy_gradient",
    )},
    "masked_mean": lambda new: _recorded(
        lambda losses: kernels.masked_mean(losses, new(np.abs(VECTOR) > 0.3)), wide=(normal(H),)
    )(new),
    "choose_experts": lambda new: [
        kernels.choose_experts(new(LOGITS), RULE, new(normal(12), ms.float32)),
        kernels.choose_experts(new(LOGITS), RULE, balanced=True),
    ],
    "routing_probabilities": lambda new: _recorded(
        lambda logits: kernels.routing_probabilities(logits, new(PICKED), RULE), LOGITS
    )(new),
    "sample_experts": _recorded(lambda logits: kernels.sample_experts(logits, 0.1, NOISE)[0], LOGITS),
    "drop_over_capacity": lambda new: _recorded(
        lambda probs: kernels.drop_over_capacity(probs, new(PICKED), 400, False)[0], wide=(PROBABILITIES,)
    )(new),
    "load_of_experts": lambda new: kernels.load_of_experts(new(PICKED), B, 12),
    "router_statistics": lambda new: kernels.router_statistics(new(LOGITS), RULE),
    "with_router_losses": lambda new: _recorded(
        lambda logits: kernels.with_router_losses(logits, new(normal(B, 12), ms.float32), 0.1, RULE), LOGITS
    )(new),
    "adam_": lambda new: [
        _in_place(lambda *tensors, settings=settings: kernels.adam_(*tensors, settings), 4, wide=(0,))(new)
        for settings in (ADAM, L2)
    ],
    "update_": _in_place(_update, 3, wide=(0,)),
    "combine_": _in_place(lambda x, y: kernels.combine_(x, y, 0.9, 0.25), 2),
    "clamp_": _in_place(lambda x: kernels.clamp_(x, 0.5), 1),
    "squared_norm": lambda new: kernels.squared_norm(new(normal(FLAT))),
    "all_finite": lambda new: kernels.all_finite(new(normal(FLAT))),
    "add_": _in_place(lambda x, y: kernels.add_(x, y), 2),
    "scale_": _in_place(lambda x: kernels.scale_(x, 0.3), 1),
    "fill_": _in_place(lambda x: kernels.fill_(x, 0.3), 1),
}  # fmt: skip
"""Operator's name -> its call."""
