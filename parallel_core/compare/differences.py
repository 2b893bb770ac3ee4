"""The first differences of two runs' steps, in the order in which a step computes: weights, data, activations, loss,
gradients, norm and rates, updates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from parallel_core.compare.recorded import Step
from parallel_core.compare.sample import Sample
from parallel_core.numerics.dtypes import Array

EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
ROUNDINGS = {"activation": 64, "gradient": 256, "update": 1 << 13, "weight": 4, "loss": 32, "grad_norm": 256}
"""Kind of figure -> the relative difference that rounding may make between two layouts of one computation in float32,
in its epsilons (16-bit types: `FEWER`). Measured over the goldens' layouts: losses 8, gradients 60, updates 2,500 (Adam
divides rounding by rounding)."""
FEWER = 8
"""Divisor of `ROUNDINGS` for 16-bit types, where they count epsilons of that type: its sums are made in float32."""
NEGLIGIBLE = 1e-4
"""The share of the largest norm among the gradients, or updates, below which another's is zero but for rounding, such
as those of keys' biases: unless exactness is asked for, their distances are relative to it at least."""
SAME = {True: "and nothing differs", False: "as far as rounding tells"}
"""Whether any other bit is a difference (--exact) -> the words behind runs or weights that are called the same."""
EXACT = ("lr", "weight_decay", "loss_scale", "skipped")
"""Figures that no sum over tokens or ranks gives: they must agree to within 1e-12 of their size."""


class Difference(NamedTuple):
    """A difference between two runs in one kind of figure."""

    kind: str
    """One of weight, data, activation, loss, gradient, grad_norm, lr, weight_decay, loss_scale, skipped, update."""
    step: int
    name: str
    """Global name of the parameter, name of the cell that gave the activation, "tokens" for data; else ""."""
    micro_batch: int | None
    """Number of the micro-batch within the global batch, for data and activations; else None."""
    distance: float
    """Relative distance (`distance`): of a parameter's kept entries or, if larger, of its norms. Infinite for data, and
    where only one run has the parameter."""
    allowed: float
    """The largest distance that is no difference; 0: any distance counts."""
    detail: str = ""
    """More about the difference, for messages."""

    def __str__(self) -> str:
        where = f" of {self.name}" if self.name else ""
        micro_batch = "" if self.micro_batch is None else f" in micro-batch {self.micro_batch}"
        apart = f": {self.distance:.2g} apart, {self.allowed:.2g} is rounding" if self.allowed else ""
        return f"step {self.step}, {self.kind}{where}{micro_batch}{apart}{f' ({self.detail})' if self.detail else ''}"


def allowed(kind: str, dtypes: Sequence[str], exact: bool) -> float:
    """The largest relative distance of a kind of figure, a key of `ROUNDINGS`, that rounding explains: in the coarser
    of two runs' types (`dtypes`), for weights in float32 whatever the types; 0 with `exact`."""
    if exact:
        return 0.0
    of_types = ("float32",) if kind == "weight" else dtypes
    epsilon = max(EPSILON.get(dtype, EPSILON["float32"]) for dtype in of_types)
    return epsilon * ROUNDINGS[kind] / (1 if epsilon == EPSILON["float32"] else FEWER)


def differences(step: int, one: Step, other: Step, exact: bool = False) -> Iterator[Difference]:
    """The differences of two runs' records of a step, only the first of each kind. In this order they are sought in the
    weights before the update, tokens, activations, loss, gradients, gradient norm, the figures of `EXACT`, and the kept
    entries of updates, as far as both records have them. With `exact` any difference of these counts, without it one
    that rounding does not explain; the figures of `EXACT` may always be 1e-12 of their size apart."""
    types = [one.dtype, other.dtype]
    kinds = (
        _parameters("weight", step, one.before, other.before, types, exact, backwards=False),
        _data(step, one.tokens, other.tokens),
        _activations(step, one, other, types, exact),
        _figures(("loss",), step, one, other, types, exact),
        _parameters("gradient", step, one.gradients, other.gradients, types, exact, backwards=True),
        _figures(("grad_norm", *EXACT), step, one, other, types, exact),
        _parameters("update", step, _updates(one), _updates(other), types, exact, backwards=False),
    )
    for found in kinds:
        yield from chain(found)


def _updates(step: Step) -> dict[str, Sample]:
    before = step.before or step.previous
    return {name: step.after[name].minus(before[name]) for name in before if name in step.after}


def distance(one: Array, other: Array, least: float = 0.0) -> float:
    """norm(one - other) / max(norm(other), least), norms over all entries, computed in float64; 0 for equal arrays, in
    which NaN equals NaN. Infinite for different shapes, and for unequal arrays if they have infinities or NaNs or the
    divisor is 0."""
    if one.shape != other.shape:
        return math.inf
    apart = one.astype(np.float64) - other
    if not np.isfinite(apart).all():
        return 0.0 if np.array_equal(one, other, equal_nan=True) else math.inf
    size = max(float(np.linalg.norm(other.astype(np.float64))), least)
    return float(np.linalg.norm(apart)) / size if size else 0.0 if not apart.any() else math.inf


def _factor(one: Array, other: Array) -> str:
    """An explanation of the difference, if there is one: the shapes, or a factor by which `one` is `other`; else ""."""
    if one.shape != other.shape:
        return f"shapes {list(one.shape)} and {list(other.shape)}"
    x, y = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    square = float(y @ y)
    factor = float(x @ y) / square if square else 0.0
    rest = float(np.linalg.norm(x - factor * y))
    is_scaled = factor and rest < 0.05 * float(np.linalg.norm(x - y))
    return f"{factor:.6g} times the other" if is_scaled else ""


def _parameters(
    kind: str,
    step: int,
    one: Mapping[str, Sample],
    other: Mapping[str, Sample],
    types: Sequence[str],
    exact: bool,
    *,
    backwards: bool,
) -> Iterator[Difference]:
    """The first parameter that differs, in the order of the computation: with `backwards`, as a backward has it, the
    last layers come first. Its detail says how many more differ."""
    names = [name for name in one if name in other]
    limit = allowed(kind, types, exact)
    largest = max((sample.norm for sample in other.values()), default=0.0)
    least = 0.0 if exact or kind == "weight" else NEGLIGIBLE * largest
    found = []
    for name in sorted(names, key=place_in_model, reverse=backwards):
        mine, theirs = one[name], other[name]
        if mine.digest and mine.digest == theirs.digest:
            continue
        # Only some entries of a large tensor are recorded; its norm may show a difference elsewhere.
        by_norm = abs(mine.norm - theirs.norm) / max(theirs.norm, least) if max(theirs.norm, least) else 0.0
        apart = max(distance(mine.values, theirs.values, least), by_norm)
        if apart > limit or (exact and mine.digest and theirs.digest):
            found.append((name, apart, mine, theirs))
    if found:
        name, apart, mine, theirs = found[0]
        words = [_factor(mine.values, theirs.values), f"and {len(found) - 1} more of {len(names)}" if found[1:] else ""]
        yield Difference(kind, step, name, None, apart, limit, "; ".join(filter(None, words)))


def place_in_model(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """A key that sorts global names of parameters, or of cells, by their place in the model: embeddings, layers by
    number, the last norm, multi-token prediction, the head, any others. Within a layer the first norm and attention
    stand before the second norm and the feed-forward block; of a layer of two halves the first one before experts, and
    these before the second one."""
    begins = ("embedding", "decoder.layers", "decoder", "mtp", "output_layer")
    rank = next((number for number, begin in enumerate(begins) if name.startswith(begin)), len(begins))
    parts = {"first": 0, "input_layernorm": 0, "self_attention": 1, "pre_mlp_layernorm": 2, "mlp": 3, "second": 4}
    inside = {"linear_qkv": 0, "linear_proj": 1, "router": 2, "linear_fc1": 3, "linear_fc2": 4}
    words = [word for word in name.split(".") if word]
    return rank, [(0, int(word)) if word.isdigit() else (1, parts.get(word, inside.get(word, 9))) for word in words]


def _data(step: int, one: Mapping[int, Array], other: Mapping[int, Array]) -> Iterator[Difference]:
    for micro_batch in sorted(one.keys() & other.keys()):
        mine, theirs = one[micro_batch], other[micro_batch]
        if mine.shape != theirs.shape:
            yield Difference("data", step, "tokens", micro_batch, math.inf, 0.0, f"{mine.shape} and {theirs.shape}")
            return
        if (rows := np.flatnonzero((mine != theirs).any(axis=1))).size:
            elsewhere = [_place_of(theirs[row], one) for row in rows[:1]]
            first = int(np.argmax(mine[rows[0]] != theirs[rows[0]]))
            words = f"row {', '.join(map(str, rows))}, from position {first} on{elsewhere[0]}"
            yield Difference("data", step, "tokens", micro_batch, math.inf, 0.0, words)
            return


def _place_of(row: Array, batch: Mapping[int, Array]) -> str:
    """A clause that says where in this run's batch the other run's row [s] of tokens stands; "" if nowhere."""
    for micro_batch, rows in batch.items():
        for number, mine in enumerate(rows):
            if np.array_equal(mine, row):
                return f"; the other's is here row {number} of micro-batch {micro_batch}"
    return ""


def _activations(step: int, one: Step, other: Step, types: Sequence[str], exact: bool) -> Iterator[Difference]:
    """The first activation that differs, by micro-batch, then by cell in the order of the model. Cells are matched by
    name: programs may count them differently."""
    mine, theirs = ({(mb, name): x for (mb, _, name), x in run.activations.items()} for run in (one, other))
    limit = allowed("activation", types, exact)
    for micro_batch, name in sorted(mine, key=lambda place: (place[0], place_in_model(place[1]))):
        values, others = mine[micro_batch, name], theirs.get((micro_batch, name))
        if others is None:
            continue
        apart = distance(values, others)
        if apart > limit:
            yield Difference("activation", step, name, micro_batch, apart, limit, _factor(values, others))
            return


def _figures(
    names: Sequence[str], step: int, one: Step, other: Step, types: Sequence[str], exact: bool
) -> Iterator[Difference]:
    for name in names:
        mine, theirs = one.figures.get(name), other.figures.get(name)
        if mine is None or theirs is None:
            continue
        limit = 1e-12 if name in EXACT else allowed(name, types, exact)
        apart = distance(np.array([mine], np.float64), np.array([theirs], np.float64))
        if apart > limit:
            yield Difference(name, step, "", None, apart, limit, f"{mine} and {theirs}")
