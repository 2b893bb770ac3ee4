"""Parameters with the record of their cut and initial values, and the functions that name, fill and overwrite them.

Random initial values depend on a parameter's global name, which follows from its place in the finished model. So layers
make parameters as zeros with a record (`ParameterMeta`), and `name_parameters` and `initialize_parameters` run over the
finished model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.buffers.stretch import Stretch
from parallel_core.initial_values import AnyInitial
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Place, ShardSpec, place
from pynative import parallel_state
from pynative.memory import in_place
from pynative.memory.arrays import array_type
from pynative.memory.rounding import convert

Dtype: TypeAlias = "str | ms.Type"
"""A type by MindSpore's object or by its name, "float32"."""


def type_name(dtype: Dtype) -> str:
    """The name of a type, such as "float32", from that name or from MindSpore's type object."""
    return dtype if isinstance(dtype, str) else str(dtype).lower()


def type_of(dtype: Dtype) -> ms.Type:
    """MindSpore's type object, from that object or from its name, such as "float32"."""
    return getattr(ms, type_name(dtype))


def _nothing() -> None:
    """Do nothing: the default of the hooks of a parameter that is always whole."""


@dataclass(slots=True, eq=False)
class ParameterMeta:
    """The record of a parameter, its attribute `meta`: global shape and cuts (`spec`), initial values, the view of the
    gradient buffer where its gradients are summed (`main_grad`) and the state of that sum, the optimizer's float32 copy
    (`main_param`), the LayerEvents of its chunk, and for ZeRO stage 3 `fetch`, which brings its whole values into its
    memory, and `keep`, which copies from there to `kept`, the part that the rank owns.

    Three attributes stand on the parameter itself because they are Megatron's names: `main_grad` and `main_param`, for
    scripts to read, and `sequence_parallel = True`, which a script sets on a parameter of its own cell that is applied
    to a part of the sequence.
    """

    spec: ShardSpec
    """Global shape, cuts and groups of the parameter; `spec.name` is its global name."""
    initial: AnyInitial | None = None
    """The parameter's initial values; None: it keeps those that its cell gave it."""
    main_grad: Tensor | None = None
    """The view of a gradient buffer in which the parameter's gradients are summed; None: it is in no buffer."""
    main_grad_is_empty: bool = True
    """Whether nothing was added to `main_grad` since it was last emptied, or (ZeRO stages 2 and 3) last reduced over
    the replicas: the next gradient overwrites."""
    main_grad_is_final: bool = False
    """Whether the sum of `main_grad` over replicas has begun: nothing may be added before the buffer is emptied."""
    after_contribution: Callable[[], None] = _nothing
    """Called after each addition to `main_grad` by an operator's own backward."""
    main_param: Tensor | None = None
    """The float32 copy of a 16-bit parameter, which the optimizer updates: in the parameter's shape if this rank owns
    all of it, else a vector of the part that it owns. None: there is no copy, or the rank owns nothing of it."""
    rounded_from_main: Tensor | None = None
    """The parameter, or the slice of it, in its own type, of which `main_param` is the float32 copy."""
    layer_events: Any = None
    """The LayerEvents of the parameter's chunk; None until they are made."""
    fetch: Callable[[], None] = _nothing
    """Brings the parameter's whole values into its memory. With ZeRO stage 3 they are otherwise there only while its
    layer is at work; all ranks call this."""
    keep: Callable[[], None] = _nothing
    """Copies values that were written into the parameter's memory to where the rank keeps its part (ZeRO stage 3)."""
    kept: tuple[Stretch, Tensor] | None = None
    """The stretch of the parameter that this rank owns with ZeRO stage 3, and the vector of its values; None if the
    rank owns nothing of it, or the parameter is not cut (`is_cut`)."""
    buffers: Callable[[], Any] = lambda: None
    """Gives the gradient buffers that the parameter is in, as long as they exist, else None (it is a weak
    reference)."""

    @property
    def is_cut(self) -> bool:
        """Whether this rank keeps only its part of the parameter (ZeRO stage 3): unless the parameter's layer is at
        work, the attribute `fetch` must be called before the values are read."""
        return self.fetch is not _nothing


def make_parameter(spec: ShardSpec, initial: AnyInitial, dtype: Dtype = "float32") -> Parameter:
    """This rank's shard of the parameter that `spec` describes, with its record (`meta`); its values are zeros."""
    shape = place(spec, parallel_state.get_coordinates()).shape
    parameter = Parameter(as_type(np.zeros(shape, np.float32), type_of(dtype)), name="unnamed")
    parameter.meta = ParameterMeta(spec, initial)
    return parameter


def place_of(parameter: Parameter) -> Place:
    """The boxes of the global array that this rank's shard of a parameter covers, and the shard's shape."""
    return place(parameter.meta.spec, parallel_state.get_coordinates())


def set_main_grad(parameter: Parameter, view: Tensor) -> None:
    """Make a view of a gradient buffer the parameter's `main_grad`, marked as empty, and remove the parameter's
    `after_contribution`."""
    parameter.main_grad = parameter.meta.main_grad = view
    parameter.meta.main_grad_is_empty, parameter.meta.after_contribution = True, _nothing


def set_main_param(parameter: Parameter, view: Tensor | None, of: Tensor | None = None) -> None:
    """Make `view`, a part of the optimizer's state, the float32 copy of a parameter; None: there is no copy. of: the
    values of which `view` is the copy, in the parameter's type: all of them in its shape, or as a vector the part that
    this rank owns."""
    parameter.main_param = parameter.meta.main_param = view
    parameter.meta.rounded_from_main = of


def as_type(values: Array, dtype: ms.Type) -> Tensor:
    """A tensor of type `dtype` with the values of a float32 array: over its memory if `dtype` is float32 and the array
    is C-contiguous, else a copy."""
    if dtype is ms.float32:
        return Tensor.from_numpy(values)
    found = np.empty(values.shape, array_type(dtype))
    with np.errstate(over="ignore"):  # a float16 beyond its range is an infinity
        convert(values, found)
    return Tensor.from_numpy(found)


def _global_name(path: str) -> str:
    """The part of a parameter's path behind the last "language_model.", where Megatron's names start; the whole path if
    it has none."""
    return path.rpartition("language_model.")[2]


def _meta_of_users(parameter: Parameter, name: str) -> ParameterMeta:
    """The record of a parameter of a user's own cell: replicated over all ranks; weight decay by Megatron's rule, not
    on vectors and biases; with `sequence_parallel` its gradient is a partial sum over tp."""
    on_share = getattr(parameter, "sequence_parallel", False)
    decayed = len(parameter.shape) > 1 and not name.endswith(".bias")
    spec = ShardSpec(shape=tuple(parameter.shape), partial_over="tp" if on_share else None, weight_decay=decayed)
    return ParameterMeta(spec)


def name_parameters(model: nn.Cell) -> list[Parameter]:
    """Give every parameter of the model a global name and a record, where it has none; return the parameters in the
    model's order, each once."""
    parameters = []
    for path, parameter in model.parameters_and_names():
        if not hasattr(parameter, "meta"):
            parameter.meta = _meta_of_users(parameter, path)
        if not parameter.meta.spec.name:
            parameter.meta.spec = parameter.meta.spec.named(_global_name(path))
        parameters.append(parameter)
    return parameters


def whole_parameters(model: nn.Cell) -> Iterator[Parameter]:
    """Yield the parameters in the model's order, each with all values of this rank's shard in its memory until the next
    is asked for: with ZeRO stage 3 the next may take the same memory. All ranks call this, and iterate to the end."""
    for parameter in settled(name_parameters(model)):
        parameter.meta.fetch()
        yield parameter


def initialize_parameters(model: nn.Cell, seed: int) -> None:
    """Write the initial values of all parameters of a model that have a record of them (`ParameterMeta.initial`):
    functions of (seed, global name, global index), whatever the layout."""
    for parameter in name_parameters(model):
        if parameter.meta.initial is not None:
            write_parameter(parameter, parameter.meta.initial.shard(seed, place_of(parameter)))


def settled(parameters: list[Parameter]) -> list[Parameter]:
    """Wait for the gather of the parameters' values that is under way, if one is (--overlap-param-gather), and return
    the parameters: before its end their values are stale, and a write would be overwritten."""
    found = (parameter.meta.buffers() for parameter in parameters)
    for buffers in {id(one): one for one in found if one is not None}.values():
        buffers.finish_param_sync()
    return parameters


def write(tensor: Tensor, values: Array) -> None:
    """Overwrite a tensor in place with an array of its shape, rounded to float32 and then to the tensor's type."""
    in_place.assign(tensor, Tensor.from_numpy(np.ascontiguousarray(values, np.float32)))


def write_parameter(parameter: Parameter, values: Array) -> None:
    """Overwrite this rank's shard of a parameter in place; its float32 copy, if any, is set to the rounded values."""
    write(parameter, values)
    parameter.meta.keep()
    if parameter.meta.main_param is not None:
        in_place.assign(parameter.meta.main_param, parameter.meta.rounded_from_main)


def trainable(model: nn.Cell) -> Iterator[Parameter]:
    """The model's parameters with `requires_grad`, in the model's order."""
    return (p for p in model.get_parameters() if p.requires_grad)
