"""Parameters that know their cut, and their values once the model around them is complete.

A parameter's value depends on its global name, and the name on where the parameter ends up in the model; so layers make
their parameters as zeros with a record of spec and initial values (`ParameterMeta`), and `name_parameters` and
`initialize_parameters` run over the finished model.
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

Dtype: TypeAlias = "str | ms.Type"
"""A type by MindSpore's object or by its name, "float32"."""


def type_name(dtype: Dtype) -> str:
    """The name of a type."""
    return dtype if isinstance(dtype, str) else str(dtype).lower()


def type_of(dtype: Dtype) -> ms.Type:
    """MindSpore's object of a type."""
    return getattr(ms, type_name(dtype))


def _nothing() -> None:
    """A function that does nothing, for parameters that are always whole."""


@dataclass(slots=True, eq=False)
class ParameterMeta:
    """The properties of a parameter beside its values: its attribute `meta`.

    Three attributes stand beside it because they are Megatron's names: `main_grad` and `main_param`, for scripts to
    read, and `sequence_parallel = True`, which a script sets on a parameter of its own cell that is applied to a part
    of the sequence.
    """

    spec: ShardSpec
    """Its cuts; its name is the parameter's global name."""
    initial: AnyInitial | None = None
    """Initial values; None: those that its cell gave it."""
    main_grad: Tensor | None = None
    """The view of a gradient buffer that its gradients are summed in; None: the parameter is in no buffer."""
    main_grad_is_empty: bool = True
    """Whether nothing was added since the buffer was emptied: the next gradient overwrites."""
    main_grad_is_final: bool = False
    """Its sum over replicas has begun: nothing may be added before the buffer is emptied."""
    after_contribution: Callable[[], None] = _nothing
    """Called when something was added to its gradient."""
    main_param: Tensor | None = None
    """The float32 copy of a 16-bit parameter, which the optimizer updates; with the distributed optimizer of the part
    that this rank owns, as a vector. None: there is none."""
    rounded_from_main: Tensor | None = None
    """The slice of the parameter that `main_param` mirrors."""
    layer_events: Any = None
    """The LayerEvents of the chunk that it belongs to, which `get_model` sets; None: those of no chunk."""
    fetch: Callable[[], None] = _nothing
    """Has its values in its memory. With ZeRO stage 3 they are there by themselves only while its layer is at work; all
    ranks call this."""
    keep: Callable[[], None] = _nothing
    """Takes over values that were written there."""
    kept: tuple[Stretch, Tensor] | None = None
    """For a parameter of which the rank keeps a part alone: the part, and the vector; None if the rank keeps nothing of
    it."""
    buffers: Callable[[], Any] = lambda: None
    """Gives the buffers that it is in, while there are any: a weak reference to them."""

    @property
    def is_cut(self) -> bool:
        """Whether the rank keeps a part of it alone, so that its values are in its memory when they are fetched."""
        return self.fetch is not _nothing


def make_parameter(spec: ShardSpec, initial: AnyInitial, dtype: Dtype = "float32") -> Parameter:
    """This rank's shard of a parameter, zero until `initialize_parameters`."""
    shape = place(spec, parallel_state.get_coordinates()).shape
    parameter = Parameter(as_type(np.zeros(shape, np.float32), type_of(dtype)), name="unnamed")
    parameter.meta = ParameterMeta(spec, initial)
    return parameter


def place_of(parameter: Parameter) -> Place:
    """The part of a parameter that this rank holds."""
    return place(parameter.meta.spec, parallel_state.get_coordinates())


def set_main_grad(parameter: Parameter, view: Tensor) -> None:
    """Have a parameter's gradients summed in a view of a buffer."""
    parameter.main_grad = parameter.meta.main_grad = view
    parameter.meta.main_grad_is_empty, parameter.meta.after_contribution = True, _nothing


def set_main_param(parameter: Parameter, view: Tensor | None, of: Tensor | None = None) -> None:
    """Have a parameter's values, or those of a part `of` it, kept in float32 too, in a view of an optimizer's state;
    None: they are not."""
    parameter.main_param = parameter.meta.main_param = view
    parameter.meta.rounded_from_main = of


def as_type(values: Array, dtype: ms.Type) -> Tensor:
    """A tensor of this type over float32 values."""
    tensor = Tensor.from_numpy(values)
    return tensor if dtype == ms.float32 else tensor.astype(dtype)


def _global_name(path: str) -> str:
    """A parameter's path below the language model, which is where Megatron's names start."""
    return path.rpartition("language_model.")[2]


def _meta_of_users(parameter: Parameter, name: str) -> ParameterMeta:
    """The properties of a parameter of a user's own cell: replicated; weight decay by Megatron's rule, not on vectors
    and biases."""
    on_share = getattr(parameter, "sequence_parallel", False)
    decayed = len(parameter.shape) > 1 and not name.endswith(".bias")
    spec = ShardSpec(shape=tuple(parameter.shape), partial_over="tp" if on_share else None, weight_decay=decayed)
    return ParameterMeta(spec)


def name_parameters(model: nn.Cell) -> list[Parameter]:
    """Give every parameter of the model its global name; the parameters, in the model's order, each once."""
    parameters = []
    for path, parameter in model.parameters_and_names():
        if not hasattr(parameter, "meta"):
            parameter.meta = _meta_of_users(parameter, path)
        if not parameter.meta.spec.name:
            parameter.meta.spec = parameter.meta.spec.named(_global_name(path))
        parameters.append(parameter)
    return parameters


def whole_parameters(model: nn.Cell) -> Iterator[Parameter]:
    """The parameters in the model's order, each with its values in its memory until the next one is asked for: with
    ZeRO stage 3 several take turns in the same memory. All ranks call this, and go through all of them."""
    for parameter in settled(name_parameters(model)):
        parameter.meta.fetch()
        yield parameter


def initialize_parameters(model: nn.Cell, seed: int) -> None:
    """Write the initial values: functions of (seed, global name, global index), whatever the layout."""
    for parameter in name_parameters(model):
        if parameter.meta.initial is not None:
            write_parameter(parameter, parameter.meta.initial.shard(seed, place_of(parameter)))


def settled(parameters: list[Parameter]) -> list[Parameter]:
    """The parameters, once no gather is on its way to them (--overlap-param-gather): before it has come they are stale,
    and it overwrites what is written."""
    found = (parameter.meta.buffers() for parameter in parameters)
    for buffers in {id(one): one for one in found if one is not None}.values():
        buffers.finish_param_sync()
    return parameters


def write(tensor: Tensor, values: Array) -> None:
    """Overwrite a tensor in place, rounding to its type."""
    in_place.assign(tensor, Tensor.from_numpy(np.ascontiguousarray(values, np.float32)))


def write_parameter(parameter: Parameter, values: Array) -> None:
    """Overwrite a parameter in place; its float32 copy, if it has one, then holds the rounded values too."""
    write(parameter, values)
    parameter.meta.keep()
    if parameter.meta.main_param is not None:
        in_place.assign(parameter.meta.main_param, parameter.meta.rounded_from_main)


def trainable(model: nn.Cell) -> Iterator[Parameter]:
    """The model's parameters that receive a gradient."""
    return (p for p in model.get_parameters() if p.requires_grad)
