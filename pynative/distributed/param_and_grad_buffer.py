"""A model's parameters and gradients in flat buffers: memory for a plan of `parallel_core/buffers`, and the collectives
around an update."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from weakref import ref

import mindspore
import numpy as np
from mindspore import Parameter, nn

from parallel_core.buffers.collectives import Collective, bucket_reductions, other_sums, plan_gathers
from parallel_core.buffers.layout import BufferPlan, Entry, Span, overlaps, plan_buffers
from parallel_core.buffers.slots import Residence, plan_residence
from parallel_core.config.gradient import GradientConfig
from parallel_core.sharding import SHARDS_OF_STATES
from pynative import parallel_state
from pynative.distributed.bucket import ParamAndGradBucket, Transfer
from pynative.distributed.flat_memory import FlatMemory, InSlot, Slots, SomeMemory, SplitMemory
from pynative.distributed.gathered_parameters import GatheredBucket, WeightSlot
from pynative.distributed.overlap import OverlappedSums
from pynative.distributed.transient_bucket import TransientBucket, Turn
from pynative.distributed.zero import Cells, FetchParameters, SendGradients
from pynative.memory import in_place
from pynative.parameter import place_of, set_main_grad, trainable, type_name
from pynative.startup.log import warn


class ParamAndGradBuffer:
    """The memory of one planned buffer: its parameters become views of it, or of a slot (ZeRO stage 3), and gradients
    are summed in their `main_grad`."""

    def __init__(
        self, plan: BufferPlan, parameters: Sequence[Parameter], residence: Residence, offloads_cut: bool = False
    ) -> None:
        """parameters: all of the model, which the plan's entries index. offloads_cut: keep the rank's parts of
        parameters that are gathered (ZeRO stage 3) in host memory."""
        self.plan = plan
        self.owned = residence.owned
        """The spans that this rank updates, and of which it has the optimizer's state: all of the buffer, or with the
        distributed optimizer its part of every bucket. Only there is the reduced gradient complete."""
        self.parameters = _kept_parameters(residence, plan.parameter_type, offloads_cut)
        """The memory of the parameters that the rank keeps: all, or with ZeRO stage 3 its own part of what has a
        slot."""
        self.gradients = FlatMemory(residence.gradients, plan.gradient_type)
        self.gradient_slots = Slots(residence.gradient_slots, plan.gradient_type)
        self.parameter_slots = Slots(residence.parameter_slots, plan.parameter_type)
        self.entries: list[tuple[Entry, Parameter]] = [(entry, parameters[entry.index]) for entry in plan.entries]
        for entry, parameter in self.entries:
            self._adopt(entry, parameter)
        self.gathered = self._gathered_buckets()
        """The buckets that are gathered for a cell (ZeRO stage 3), by the cell's number."""
        self._addresses = [parameter.data_ptr() for _, parameter in self.entries]

    def _adopt(self, entry: Entry, parameter: Parameter) -> None:
        """Make a view of the buffer's gradients, or of a slot of gradients, the parameter's `main_grad`; and unless its
        weights have a slot, move its values into the buffer, so that a view is its memory."""
        place, in_slot = (entry.start, entry.place.shape), self.gradient_slots.view(entry)
        set_main_grad(parameter, self.gradients.view(*place) if in_slot is None else in_slot)
        if self.parameter_slots.plan.bucket_of(entry.span) is None:
            home = self.parameters.view(*place)
            in_place.assign(home, parameter)
            parameter.set_data(home)

    def _gathered_buckets(self) -> dict[int, GatheredBucket]:
        slots = self.parameter_slots
        memory = {number: WeightSlot(slots.memory_of(number)) for number in set(slots.plan.slots.values())}
        places = [InSlot(slots, bucket) for bucket in slots.plan.cells]
        group = parallel_state.get_group(SHARDS_OF_STATES[self.plan.replicas])
        return {
            place.cell: GatheredBucket(self.entries, place, memory[place.slot], self.parameters, group)
            for place in places
        }

    def free_slots(self) -> None:
        """Free all slots of weights, which are stale once this rank's part was updated."""
        for bucket in self.gathered.values():
            if bucket.slot.bucket is not None:
                bucket.slot.free()

    def check_slots(self) -> None:
        """Raise ValueError if values were assigned to parameters whose slot is empty: a checkpoint would lack them."""
        for bucket in self.gathered.values():
            bucket.wait()
            bucket.slot.check()

    @property
    def memories(self) -> list[SomeMemory]:
        """All memory that is allocated: of parameters, of gradients, and of their slots."""
        slots = (self.parameter_slots.memory, self.gradient_slots.memory)
        return [self.parameters, self.gradients, *(memory for memory in slots if memory is not None)]

    @property
    def bytes(self) -> tuple[int, int]:
        """(Bytes allocated for parameters, bytes allocated for gradients), slots included."""
        of_parameters, of_gradients = (
            memory.bytes + (slots.memory.bytes if slots.memory else 0)
            for memory, slots in ((self.parameters, self.parameter_slots), (self.gradients, self.gradient_slots))
        )
        return of_parameters, of_gradients

    def check_memory(self) -> None:
        """Raise ValueError, which names the parameter, if one no longer has the memory that it was given, in the buffer
        or in a slot, and so would not be trained."""
        for (entry, parameter), address in zip(self.entries, self._addresses, strict=True):
            if parameter.data_ptr() != address:
                raise ValueError(
                    f"parameter {entry.spec.name}: left the memory that is trained, as Parameter.set_data does to one; "
                    f"write its values by mindspore.ops.assign, or pynative.checkpointing.load_weights"
                )


def _kept_parameters(residence: Residence, dtype: str, offloads_cut: bool) -> SomeMemory:
    """The memory of the parameters that a rank keeps; with offloads_cut, those with a slot in host memory, unless the
    device is a CPU."""
    cut = overlaps(residence.parameters, [*residence.parameter_slots.cells])
    if not offloads_cut or not cut or mindspore.get_context("device_target") == "CPU":
        return FlatMemory(residence.parameters, dtype)
    return SplitMemory(cut, [span for span in residence.parameters if span not in cut], dtype, np.zeros)


class ParamAndGradBuffers:
    """All flat buffers of a model, one for each parameter type and kind of the replicas' group. Raises ValueError
    for a parameter of which --zero-stage 3 of an earlier optimizer keeps only a part, and as `plan_buffers`.

    Args:
        keys: one for each parameter; no bucket has parameters with different keys, and with ZeRO stage 2 or 3 cells
            must have different ones. None: those that the configuration's ZeRO stage and overlap need.
    """

    def __init__(
        self, parameters: Iterable[Parameter], config: GradientConfig, keys: Sequence[Hashable] | None = None
    ) -> None:
        parameters = list(parameters)
        _check_that_none_is_cut(parameters)
        self.is_sharded, self._config, self._cells = config.shards_states, config, Cells(parameters)
        self._buffers = self._allocate(parameters, keys or self._keys(parameters))
        self.entries = [pair for buffer in self._buffers for pair in buffer.entries]
        """(Entry of its buffer's plan, parameter) of every parameter, buffer after buffer."""
        self._turn, self._is_checked = Turn(), False
        self.buckets = self._make_buckets()
        """The buckets, buffer after buffer; in each buffer those of the model's last parameters first."""
        sums = other_sums(self._plans, parallel_state.get_coordinates(), sharded=self.is_sharded)
        self._other_sums = [Transfer.of(one, self._buffers[one.buffer].gradients, "gradients") for one in sums]
        for _, parameter in self.entries:
            parameter.meta.buffers = ref(self)
        self._observe()
        self._warn_of_what_stays_whole()

    def _allocate(self, parameters: Sequence[Parameter], keys: Sequence[Hashable] | None) -> list[ParamAndGradBuffer]:
        """Plan buffers for these parameters, allocate them, and move the parameters there."""
        config, cells, coordinates = self._config, self._cells, parallel_state.get_coordinates()
        places = [(place_of(p), type_name(p.dtype)) for p in parameters]
        plans = plan_buffers(places, config.type_for, config.bucket_rule(coordinates), keys)
        made = []
        for plan in plans:
            residence = plan_residence(plan, cells.of_parameters, len(cells), coordinates, *config.zero)
            made.append(ParamAndGradBuffer(plan, parameters, residence, config.cpu_offload_params))
        return made

    @property
    def _plans(self) -> list[BufferPlan]:
        return [buffer.plan for buffer in self]

    def _keys(self, parameters: Sequence[Parameter]) -> list[Hashable] | None:
        """A key for each parameter: its cell with ZeRO stage 2 and 3, its chunk where sums overlap the backward; None:
        no parameters must be kept apart."""
        if self._config.zero_stage >= 2:
            return [*self._cells.of_parameters]
        return [p.meta.layer_events for p in parameters] if self._config.overlap_grad_reduce else None

    def _observe(self) -> None:
        """Have the events of cells move gradients and weights through their slots, and start sums that overlap the
        backward."""
        leaving: dict[int | None, list[TransientBucket]] = defaultdict(list)
        arriving: dict[int, list[GatheredBucket]] = defaultdict(list)
        for bucket in self.buckets:
            if isinstance(bucket, TransientBucket):
                leaving[bucket.cell].append(bucket)
        for buffer in self:
            for cell, gathered in buffer.gathered.items():
                arriving[cell].append(gathered)
        kept = [bucket for bucket in self.buckets if not isinstance(bucket, TransientBucket)]
        overlaps_here = self._config.overlaps_on(parallel_state.get_coordinates())
        self.overlapped_sums = OverlappedSums(kept if overlaps_here else ())
        self._sends = SendGradients(self._cells, leaving, self._turn, self._config.overlap_grad_reduce)
        if arriving:
            FetchParameters(self._cells, arriving)

    def _warn_of_what_stays_whole(self) -> None:
        """Warn where ZeRO stage 2 or 3 has slots for less than half of the elements: the others belong to no observed
        cell."""
        stage = self._config.zero_stage
        buffers = [buffer for buffer in self if stage >= 2 and buffer.owned != buffer.plan.buckets]
        elements = sum(buffer.plan.size for buffer in buffers)
        cut = sum(span.size for buffer in buffers for span in buffer.gradient_slots.plan.cells)
        if 2 * cut < elements:
            warn(
                f"--zero-stage {stage}: {1 - cut / elements:.0%} of this rank's elements stay whole, as with stage 1: "
                f"tied parameters, or those of cells that are not Observable; derive the class of a layer from "
                f"pynative.tape.layer_events.Observable"
            )

    def _make_buckets(self) -> list[ParamAndGradBucket]:
        coordinates, made = parallel_state.get_coordinates(), []
        gathers = plan_gathers(self._plans, coordinates, sharded=self.is_sharded)
        for i, buffer in enumerate(self):
            for span in buffer.plan.buckets:
                sums = bucket_reductions(i, buffer.plan, span, coordinates, sharded=self.is_sharded)
                own_gathers = [gather for gather in gathers if (gather.buffer, gather.span) == (i, span)]
                made.append(self._make_bucket(buffer, span, sums, own_gathers))
        return made

    def _make_bucket(
        self, buffer: ParamAndGradBuffer, span: Span, sums: Sequence[Collective], gathers: Sequence[Collective]
    ) -> ParamAndGradBucket:
        inside = [pair for pair in buffer.entries if overlaps([pair[0].span], [span])]
        sent_as = self._config.type_sent(buffer.plan.gradient_type)
        if span not in buffer.gradient_slots.plan.cells:
            parameters = [parameter for _, parameter in inside]
            return ParamAndGradBucket(span, parameters, buffer.gradients, buffer.parameters, sums, gathers, sent_as)
        after_update = [] if span in buffer.parameter_slots.plan.cells else gathers
        slot = InSlot(buffer.gradient_slots, span)
        kept = buffer.gradients, buffer.parameters
        return TransientBucket(inside, slot, *kept, sums, after_update, self._turn, sent_as)

    @classmethod
    def of(cls, parameters: Iterable[Parameter], gradient: GradientConfig) -> "ParamAndGradBuffers":
        """The buffers that these parameters are in; if none is in any, they are made by the configuration's section
        `gradient`. Raises ValueError if some are in buffers that have not exactly these parameters; where they are
        made, as the class."""
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
        """The number of elements of all buffers as planned, padding and other ranks' parts included."""
        return sum(buffer.plan.size for buffer in self)

    def buckets_of(self, module: nn.Cell) -> list[ParamAndGradBucket]:
        """The buckets with trainable parameters of a part of the model; they may have others, too."""
        inside = {id(parameter) for parameter in trainable(module)}
        return [bucket for bucket in self.buckets if any(id(parameter) in inside for parameter in bucket.params)]

    def empty_gradients(
        self, factor_before_sum: float = 1.0, buckets: Iterable[ParamAndGradBucket] | None = None
    ) -> None:
        """Mark the gradients of `buckets` (None: all) as empty: the next contribution overwrites. factor_before_sum
        multiplies what they add up to on this rank before it is summed over the replicas. Until a call has succeeded,
        it raises ValueError if a parameter has left its buffer."""
        if not self._is_checked:  # Scripts may load values between construction and the first step.
            for buffer in self:
                buffer.check_memory()
            self._is_checked = True
        for bucket in self.buckets if buckets is None else buckets:
            bucket.empty_gradients(factor_before_sum)

    def zero_unused_gradients(self) -> None:
        """Write zeros as the gradients that are marked as empty."""
        for bucket in self.buckets:
            bucket.zero_unused_gradients()

    def reduce_gradients(self) -> None:
        """Make the gradients that this rank owns sums over ranks: over the replicas of each parameter, each times its
        `factor_before_sum`; then partial ones over their tensor-parallel or expert-tensor-parallel group, and those of
        an embedding that the first and the last stage hold over these two. Call it once a step. Sums that were started
        before are only finished. Raises NonFiniteGradients if the gradients of a checked bucket were not finite on this
        rank."""
        for bucket in self.buckets:
            bucket.start_grad_sync()
        for bucket in self.buckets:
            bucket.finish_grad_sync()
        for bucket in self.buckets:
            bucket.check_gradients()
        self.reduce_over_others()

    def reduce_over_others(self) -> None:
        """Sum gradients over ranks other than the replicas (partial ones, those of an embedding that two stages hold).
        Call it once a step, after all buckets were summed."""
        for one in self._other_sums:
            one.start().wait()

    def gather_gradients(self) -> None:
        """Make the reduced gradients complete on every rank, for scripts that read them; an update needs only the owned
        part. Not for ZeRO stage 2 and 3, with which a rank has no memory for whole gradients (`ForwardBackward` refuses
        them)."""
        for gather in plan_gathers(self._plans, parallel_state.get_coordinates(), sharded=self.is_sharded):
            Transfer.of(gather, self._buffers[gather.buffer].gradients, "gradients").start().wait()

    def start_param_sync(self) -> None:
        """Start to gather the parameters, of which each rank has updated the part that it owns, in each buffer the
        model's first ones first; free the slots of weights, whose cells gather them later (ZeRO stage 3)."""
        for bucket in reversed(self.buckets):
            bucket.start_param_sync()
        for buffer in self:
            buffer.free_slots()

    def finish_param_sync(self) -> None:
        """Wait for all gathers of parameters that `start_param_sync` started."""
        for bucket in self.buckets:
            bucket.finish_param_sync()


def _check_that_none_is_cut(parameters: Iterable[Parameter]) -> None:
    """Raise ValueError if buffers that no longer exist have left parameters of which this rank keeps only a part."""
    for parameter in parameters:
        if parameter.meta.is_cut:
            raise ValueError(
                f"parameter {parameter.meta.spec.name}: --zero-stage 3 of an earlier optimizer has cut it; keep one "
                f"optimizer for the life of the model, or make the model anew by get_model for the next one"
            )
