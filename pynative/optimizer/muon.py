"""Muon: momentum of whole matrices, orthogonalised (Jordan et al., "Muon", 2024)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mindspore import Tensor

from parallel_core.buffers import BufferPlan, Entry, Span
from parallel_core.config import OptimizerConfig
from parallel_core.config.update_rules.rule import MOMENTUM
from parallel_core.sharding import SHARDS_OF_STATES
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.distributed.flat_memory import FlatMemory
from pynative.optimizer.offload import where_states_are
from pynative.optimizer.orthogonal import scaled_update
from pynative.optimizer.sweep import Step, Sweep


@dataclass(frozen=True)
class MuonMatrix:
    """A matrix, of which this rank updates all, a run of elements, or nothing.

    A run cannot be orthogonalised by itself: the ranks that share the matrix out put their directions together, and
    each that owns something of it orthogonalises all of it.
    """

    entry: Entry
    config: OptimizerConfig
    owned: Span | None
    """Elements of the matrix as a vector."""
    sweep: Sweep | None
    """Their memory."""
    sharing: Group | None
    """The ranks that own parts of it; None: one rank owns all of it, or nobody here anything."""

    def update(self, step: Step) -> None:
        """All ranks of the groups over which it is cut call this."""
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
        """Average the gradient; the direction is the average, or Nesterov's, one average ahead."""
        momentum, average = self.config.muon.muon_momentum, sweep.moments[MOMENTUM]
        kernels.combine_(average, sweep.grad, momentum, (1 - momentum) * grad_scale)
        if not self.config.muon.muon_nesterov:
            kernels.combine_(direction, average, 0.0, 1.0)
        else:
            kernels.combine_(direction, sweep.grad, 0.0, (1 - momentum) * grad_scale)
            kernels.combine_(direction, average, 1.0, momentum)

    def _apply(self, direction: Tensor, owned: Span, sweep: Sweep, step: Step) -> None:
        """Weight decay is decoupled, as in Megatron, whatever Adam's is."""
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
    """Those of a buffer that this rank updates or helps to put together; sweeps: what it owns, by the entry's start."""
    kind = SHARDS_OF_STATES[plan.replicas]
    size = parallel_state.get_coordinates().get(kind, (0, 1))[1] if is_sharded else 1
    for entry in matrices:
        run, sweep = sweeps.get(entry.start, (None, None))
        is_shared = len(plan.owners(entry.span, size)) > 1
        if run is not None or is_shared:
            owned = None if run is None else Span(run.start - entry.start, run.stop - entry.start)
            yield MuonMatrix(entry, config, owned, sweep, parallel_state.get_group(kind) if is_shared else None)
