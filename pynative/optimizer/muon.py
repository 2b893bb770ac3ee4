"""Muon: orthogonalised momentum of whole matrices (Jordan et al., "Muon", 2024), which may be cut over ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod, sqrt
from typing import NamedTuple

from mindspore import Tensor

from parallel_core.buffers.layout import BufferPlan, Entry, Span
from parallel_core.config import OptimizerConfig
from parallel_core.config.update_rules.muon import MuonConfig
from parallel_core.config.update_rules.rule import MOMENTUM
from parallel_core.numerics.newton_schulz import PRECISIONS, SCALES, Polynomial, coefficients
from parallel_core.sharding import SHARDS_OF_STATES, ShardSpec
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.collectives.numbers import over_group
from pynative.distributed.flat_memory import FlatMemory
from pynative.optimizer.offload import where_states_are
from pynative.optimizer.sweep import Step, Sweep

EPSILON = 1e-7
"""The least norm that a matrix is divided by."""


class CutMatrix(NamedTuple):
    """The cut of a matrix along an axis, over a group each of whose ranks has a part."""

    group: Group
    axis: int

    @classmethod
    def of(cls, spec: ShardSpec) -> "CutMatrix | None":
        """The cut of a parameter over several ranks; None if each rank has all of it. Raises AssertionError if more
        than one of its cuts is over several ranks."""
        groups = [(parallel_state.get_group(cut.over), cut.axis) for cut in spec.cuts]
        several = [cls(group, axis) for group, axis in groups if group.size > 1]
        assert len(several) <= 1, f"{spec.name} is cut over several groups"
        return several[0] if several else None


def zeros(shape: Sequence[int], dtype: str = "float32") -> Tensor:
    """A contiguous tensor of zeros that can be written in place."""
    return FlatMemory([Span(0, prod(shape))], dtype).view(0, tuple(shape))


def orthogonalized(
    x: Tensor, iterations: Sequence[Polynomial], dtype: str = "float32", cut: CutMatrix | None = None
) -> Tensor:
    """U V^T, approximately, of x = U S V^T, float32 [r, c], by Newton-Schulz iterations; in type `dtype`, which the
    iterations use.

    iterations: coefficients (a, b, c) of each. cut: x and the result are this rank's part of a matrix, and all ranks of
    the cut's group call this. An iteration computes the Gram matrix of the shorter side, x x^T or x^T x; for a cut
    matrix that of the side that is not cut, summed over the ranks.
    """
    is_wide = x.shape[0] <= x.shape[1] if cut is None else cut.axis == 1
    square = kernels.squared_norm(x)
    if cut is not None:
        square = over_group(square, cut.group)
    result = zeros(x.shape, dtype)
    kernels.combine_(result, x, 0.0, 1.0 / max(sqrt(square), EPSILON))
    for a, b, c in iterations:
        gram = kernels.linear_forward(result, result) if is_wide else kernels.linear_weight_gradient(result, result)
        if cut is not None:
            gram = cut.group.all_reduce(gram)
        factor = kernels.linear_weight_gradient(gram, gram)  # gram is symmetric, so gram^T gram is its square.
        kernels.combine_(factor, gram, c, b)
        step = kernels.linear_input_gradient(factor, result) if is_wide else kernels.linear_forward(result, factor)
        kernels.combine_(result, step, a, 1.0)
    return result


def scaled_update(direction: Tensor, spec: ShardSpec, config: MuonConfig) -> Tensor:
    """The update [r, c] that a learning rate of 1 subtracts from a matrix: its direction (momentum) [r, c],
    orthogonalised and scaled. Of a matrix that is cut over ranks (`spec`) both are this rank's part, all ranks of the
    cut call this, and --muon-tp-mode says whether the whole is orthogonalised or each part by itself. Unless
    --muon-no-split-qkv is given, fused queries, gates if any, keys and values count each as a matrix."""
    cut = CutMatrix.of(spec)
    if cut is None or config.muon_tp_mode != "duplicated":
        return _of_each_matrix(direction, spec, config, cut if config.muon_tp_mode == "distributed" else None)
    whole = cut.group.all_gather(direction, cut.axis)
    # Gathering permutes the rows of fused parts, which changes no row of the result.
    return kernels.chunk(_of_each_matrix(whole, spec, config, None), cut.axis, cut.group.rank, cut.group.size)


def _of_each_matrix(x: Tensor, spec: ShardSpec, config: MuonConfig, cut: CutMatrix | None) -> Tensor:
    """The scaled update of x [r, c]; with --muon-split-qkv, of each of the matrices whose rows are interleaved in x
    separately."""
    rows = spec.interleaved_rows if config.muon_split_qkv else ()
    if not rows:
        return _scaled(x, config, cut)
    group_rows, columns = sum(rows), x.shape[1]
    groups = x.reshape(x.shape[0] // group_rows, group_rows * columns)
    merged = zeros(groups.shape)
    for stop, own in zip(accumulate(rows), rows, strict=True):
        place = [range((stop - own) * columns, stop * columns)]
        matrix = kernels.take_columns(groups, place).reshape(-1, columns)
        update = _scaled(matrix, config, cut).reshape(len(groups), own * columns)
        kernels.add_(merged, kernels.place_columns(update, place, group_rows * columns))
    return merged.reshape(x.shape)


def _scaled(x: Tensor, config: MuonConfig, cut: CutMatrix | None) -> Tensor:
    iterations = coefficients(config.muon_coefficient_type, config.muon_num_ns_steps)
    result = orthogonalized(x, iterations, PRECISIONS[config.muon_fp32_matmul_prec], cut)
    outputs, inputs = (
        length * (cut.group.size if cut is not None and cut.axis == axis else 1) for axis, length in enumerate(x.shape)
    )
    update = zeros(x.shape)
    scale = SCALES[config.muon_scale_mode](outputs, inputs) * config.muon_extra_scale_factor
    kernels.combine_(update, result, 0.0, scale)
    return update


@dataclass(frozen=True)
class MuonMatrix:
    """The update of one matrix (of a cut one, of this rank's part), of which this rank owns all, a run of elements, or
    nothing: `owned`, with its memory in `sweep`, both None for nothing.

    A run cannot be orthogonalised by itself: the ranks of the group `sharing`, several of which own parts (None: no
    two do), sum up their parts of the direction, and each that owns something of it orthogonalises all of it.
    """

    entry: Entry
    config: OptimizerConfig
    owned: Span | None
    """The run of elements that this rank owns, of the matrix as a vector; None: it owns nothing."""
    sweep: Sweep | None
    """The memory of the owned run; None: there is none."""
    sharing: Group | None
    """The group over which the buffer is shared out, if several of its ranks own parts of the matrix; else None."""

    def update(self, step: Step) -> None:
        """Update what this rank owns of the matrix. All ranks of the groups over which it is cut or shared out call
        this."""
        direction = FlatMemory([Span(0, self.entry.place.size)])
        whole = direction.span(0, self.entry.place.size)
        if self.owned is not None and self.sweep is not None:
            self._fill(direction.span(*self.owned), self.sweep, step.grad_scale)
        if self.sharing is not None:
            self.sharing.all_reduce(whole, out=whole)
        if self.owned is not None and self.sweep is not None:
            with where_states_are(self.sweep, states_are_on_host=False) as here:
                self._apply(direction.view(0, self.entry.place.shape), self.owned, here, step)

    def _fill(self, direction: Tensor, sweep: Sweep, grad_scale: float) -> None:
        """Add the gradient to its moving average, and write the owned run of the direction: that average, or
        Nesterov's."""
        momentum, average = self.config.muon.muon_momentum, sweep.moments[MOMENTUM]
        kernels.combine_(average, sweep.grad, momentum, (1 - momentum) * grad_scale)
        if not self.config.muon.muon_nesterov:
            kernels.combine_(direction, average, 0.0, 1.0)
        else:
            kernels.combine_(direction, sweep.grad, 0.0, (1 - momentum) * grad_scale)
            kernels.combine_(direction, average, 1.0, momentum)

    def _apply(self, direction: Tensor, owned: Span, sweep: Sweep, step: Step) -> None:
        """Update the owned run of the weights from the whole direction. Weight decay is decoupled, as in Megatron,
        whatever Adam's is."""
        update = scaled_update(direction, self.entry.spec, self.config.muon).reshape(-1)
        if owned.size < update.shape[0]:
            update = kernels.take_columns(update, [range(*owned)])
        learning_rate = step.learning_rate_of(sweep.treatment)
        decay = 1 - learning_rate * step.weight_decay_of(sweep.treatment)
        kernels.combine_(sweep.param, update, decay, -learning_rate, sweep.model_param)


def matrices_of(
    plan: BufferPlan,
    matrices: Sequence[Entry],
    sweeps: Mapping[int, tuple[Span, Sweep]],
    config: OptimizerConfig,
    is_sharded: bool,
) -> Iterator[MuonMatrix]:
    """Yield a MuonMatrix for each entry of `matrices`, which are of the buffer of `plan`, that this rank owns a part
    of, or whose parts several ranks own: then this rank helps to sum up the direction. sweeps: start of a matrix's
    entry -> (the run of the buffer that this rank owns, its memory). is_sharded: whether replicas share the states
    out."""
    kind = SHARDS_OF_STATES[plan.replicas]
    size = parallel_state.get_coordinates().get(kind, (0, 1))[1] if is_sharded else 1
    for entry in matrices:
        run, sweep = sweeps.get(entry.start, (None, None))
        is_shared = len(plan.owners(entry.span, size)) > 1
        if run is not None or is_shared:
            owned = None if run is None else Span(run.start - entry.start, run.stop - entry.start)
            yield MuonMatrix(entry, config, owned, sweep, parallel_state.get_group(kind) if is_shared else None)
