"""A model's parameters and gradients in flat buffers: memory for a plan of `parallel_core/buffers`, and what moves
between ranks around an update."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from weakref import ref

from mindspore import Parameter

from parallel_core.buffers import (
    BufferPlan,
    Entry,
    Span,
    bucket_reductions,
    other_sums,
    overlaps,
    plan_buffers,
    plan_gathers,
)
from parallel_core.config.gradient import GradientConfig
from pynative import in_place, parallel_state
from pynative.distributed.bucket import ParamAndGradBucket, operands
from pynative.distributed.flat_memory import FlatMemory
from pynative.distributed.overlap import OverlappedSums
from pynative.parameter import place_of, set_main_grad, type_name


class ParamAndGradBuffer:
    """The flat memory of one plan: `parameter` keeps its values, and gradients are summed in its `main_grad`."""

    def __init__(self, plan: BufferPlan, parameters: Sequence[Parameter], owned: Sequence[Span]) -> None:
        self.plan = plan
        self.owned = tuple(owned)
        """What this rank updates, and of which it has the optimizer's state: with the distributed optimizer its part of
        every bucket. The reduced gradient is whole there only."""
        self.parameters = FlatMemory([plan.span], plan.parameter_type)
        self.gradients = FlatMemory([plan.span], plan.gradient_type)
        self.entries: list[tuple[Entry, Parameter]] = [(entry, parameters[entry.index]) for entry in plan.entries]
        self._addresses = [self._adopt(entry, parameter) for entry, parameter in self.entries]

    def _adopt(self, entry: Entry, parameter: Parameter) -> int:
        """Move a parameter into the buffer; the address that it has there."""
        home = self.parameters.view(entry.start, entry.place.shape)
        in_place.assign(home, parameter)
        parameter.set_data(home)
        set_main_grad(parameter, self.gradients.view(entry.start, entry.place.shape))
        return home.data_ptr()

    def check_memory(self) -> None:
        """Raise ValueError naming a parameter that is no longer in the buffer, and so would not be trained."""
        for (entry, parameter), address in zip(self.entries, self._addresses, strict=True):
            if parameter.data_ptr() != address:
                raise ValueError(
                    f"parameter {entry.spec.name}: left the memory that is trained, as Parameter.set_data does to one; "
                    f"write its values by mindspore.ops.assign, or pynative.checkpointing.load_weights"
                )


class ParamAndGradBuffers:
    """All buffers of a model, one for each type and group of replicas.

    Args:
        keys: one for each parameter; a bucket never has parameters of two.
    """

    def __init__(
        self, parameters: Iterable[Parameter], config: GradientConfig, keys: Sequence[Hashable] | None = None
    ) -> None:
        parameters, coordinates = list(parameters), parallel_state.get_coordinates()
        self.is_sharded = config.shards_states
        plans = plan_buffers(
            [(place_of(p), type_name(p.dtype)) for p in parameters],
            config.type_for,
            config.bucket_rule(coordinates),
            keys or ([p.meta.layer_events for p in parameters] if config.overlap_grad_reduce else None),
        )
        self._buffers = [
            ParamAndGradBuffer(plan, parameters, plan.owned_by(coordinates, sharded=self.is_sharded)) for plan in plans
        ]
        self.entries = [pair for buffer in self._buffers for pair in buffer.entries]
        """Every parameter with its place."""
        self.buckets = self._make_buckets(plans)
        """In the order in which their gradients are complete."""
        sums = other_sums(plans, coordinates, sharded=self.is_sharded)
        self._other_sums = [(one.over, self._buffers[one.buffer].gradients.span(*one.span)) for one in sums]
        for _, parameter in self.entries:
            parameter.meta.buffers = ref(self)
        self.overlapped_sums = OverlappedSums(self.buckets if config.overlaps_on(coordinates) else ())
        self._is_checked = False

    def _make_buckets(self, plans: Sequence[BufferPlan]) -> list[ParamAndGradBucket]:
        coordinates, made = parallel_state.get_coordinates(), []
        gathers = plan_gathers(plans, coordinates, sharded=self.is_sharded)
        for i, buffer in enumerate(self._buffers):
            for span in buffer.plan.buckets:
                inside = [parameter for entry, parameter in buffer.entries if overlaps([entry.span], [span])]
                sums = bucket_reductions(i, buffer.plan, span, coordinates, sharded=self.is_sharded)
                own_gathers = [gather for gather in gathers if (gather.buffer, gather.span) == (i, span)]
                made.append(ParamAndGradBucket(span, inside, buffer.gradients, buffer.parameters, sums, own_gathers))
        return made

    @classmethod
    def of(cls, parameters: Iterable[Parameter], gradient: GradientConfig) -> "ParamAndGradBuffers":
        """The buffers that these parameters are in, made if there are none; ValueError if others are in them, too."""
        parameters = list(parameters)
        found = {id(buffers): buffers for buffers in (parameter.meta.buffers() for parameter in parameters) if buffers}
        if not found:
            return cls(parameters, gradient)
        buffers, *more = found.values()
        if more or {id(p) for p in parameters} != {id(p) for _, p in buffers.entries}:
            raise ValueError(
                f"{len(parameters)} parameters: some are in buffers with others already, which an optimizer or a "
                f"function of gradients was built over; give all of them the same parameters"
            )
        return buffers

    def __iter__(self) -> Iterator[ParamAndGradBuffer]:
        return iter(self._buffers)

    @property
    def size(self) -> int:
        """Elements of all buffers, padding included."""
        return sum(buffer.plan.size for buffer in self)

    def empty_gradients(self, factor_before_sum: float = 1.0) -> None:
        """Forget the gradients; the next contribution overwrites. What all of them add up to on this rank is multiplied
        by a factor before it is summed over the replicas."""
        if not self._is_checked:  # Scripts load values between the construction and the first step.
            for buffer in self:
                buffer.check_memory()
            self._is_checked = True
        for bucket in self.buckets:
            bucket.empty_gradients(factor_before_sum)

    def zero_unused_gradients(self) -> None:
        """Parameters that no micro-batch reached have gradient zero, not last step's."""
        for bucket in self.buckets:
            bucket.zero_unused_gradients()

    def check_gradients(self) -> None:
        """Raise FloatingPointError if this rank has added up a gradient that is not finite and that is an error."""
        for bucket in self.buckets:
            bucket.check_gradients()

    def reduce_gradients(self) -> None:
        """Make the gradients that this rank owns the sum over all ranks.

        Of buckets whose sum was started before, that is only finished.
        """
        for bucket in self.buckets:
            bucket.start_grad_sync()
        for bucket in self.buckets:
            bucket.finish_grad_sync()
        for over, gradients in self._other_sums:
            parallel_state.get_group(over).all_reduce(gradients, out=gradients)

    def gather_gradients(self) -> None:
        """Make the reduced gradients whole on every rank, for scripts that read them; an update needs what it owns."""
        plans = [buffer.plan for buffer in self]
        for gather in plan_gathers(plans, parallel_state.get_coordinates(), sharded=self.is_sharded):
            own, whole = operands(gather, self._buffers[gather.buffer].gradients)
            parallel_state.get_group(gather.over).all_gather(own, out=whole)

    def start_param_sync(self) -> None:
        """Start to make the parameters whole, of which each rank has updated those that it owns; the first ones of the
        model first."""
        for bucket in reversed(self.buckets):
            bucket.start_param_sync()

    def finish_param_sync(self) -> None:
        """Wait until all parameters are whole."""
        for bucket in self.buckets:
            bucket.finish_param_sync()
