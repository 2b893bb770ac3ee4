"""A model's parameters and gradients in flat buffers: memory for a plan of `parallel_core/buffers.py`, and its sums."""

from collections.abc import Iterable, Iterator, Sequence
from weakref import ref

from mindspore import Parameter

from parallel_core.buffers import BufferPlan, Entry, plan_buffers, plan_reductions
from parallel_core.config.gradient import GradientConfig
from pynative import in_place, kernels, parallel_state
from pynative.distributed.flat_memory import FlatMemory
from pynative.parameter import ParameterMeta, place_of, set_main_grad, type_name


class ParamAndGradBuffer:
    """The flat memory of one plan: `parameter` keeps its values, and gradients are summed in its `main_grad`."""

    def __init__(self, plan: BufferPlan, parameters: Sequence[Parameter]) -> None:
        self.plan = plan
        self.parameters = FlatMemory(plan.size, plan.parameter_type)
        self.gradients = FlatMemory(plan.size, plan.gradient_type)
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
    """All buffers of a model, one for each type and group of replicas."""

    def __init__(self, parameters: Iterable[Parameter], config: GradientConfig) -> None:
        parameters = list(parameters)
        plans = plan_buffers([(place_of(p), type_name(p.dtype)) for p in parameters], config.type_for)
        self._buffers = [ParamAndGradBuffer(plan, parameters) for plan in plans]
        self.entries = [pair for buffer in self._buffers for pair in buffer.entries]
        """Every parameter with its place."""
        self._metas: list[ParameterMeta] = [parameter.meta for _, parameter in self.entries]
        for meta in self._metas:
            meta.buffers = ref(self)
        reductions = plan_reductions(plans, parallel_state.get_coordinates())
        assert all(reduction.operation == "all_reduce" for reduction in reductions)
        self._sums = [(r.over, self._buffers[r.buffer].gradients.span(*r.span)) for r in reductions]
        self._is_checked = False

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

    def empty_gradients(self) -> None:
        """Forget the gradients; the next contribution overwrites."""
        if not self._is_checked:  # Scripts load values between the construction and the first step.
            for buffer in self:
                buffer.check_memory()
            self._is_checked = True
        for meta in self._metas:
            meta.main_grad_is_empty = True

    def zero_unused_gradients(self) -> None:
        """Parameters that no micro-batch reached have gradient zero, not last step's."""
        for meta in self._metas:
            if meta.main_grad_is_empty:
                kernels.fill_(meta.main_grad, 0.0)
                meta.main_grad_is_empty = False

    def scale_gradients(self, factor: float) -> None:
        """Multiply all by a factor."""
        if factor != 1.0:
            for buffer in self:
                kernels.scale_(buffer.gradients.span(0, buffer.plan.size), factor)

    def reduce_gradients(self) -> None:
        """Carry out the planned sums, in place."""
        for over, gradients in self._sums:
            parallel_state.get_group(over).all_reduce(gradients, out=gradients)
