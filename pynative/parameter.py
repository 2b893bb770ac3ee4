"""Parameters that know their cut, and their values once the model around them is complete.

A parameter's value depends on its global name, and the name on where the parameter ends up in the model; so layers make
their parameters as zeros with a `shard` (ShardSpec) and an `initial` recipe, and `name_parameters` and
`initialize_parameters` run over the finished model.
"""

from collections.abc import Iterator
from typing import TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.initial_values import Constant, Normal
from parallel_core.sharding import ShardSpec, place
from pynative import parallel_state

Dtype: TypeAlias = "str | ms.Type"
"""A type by MindSpore's object or by its name, "float32"."""


def type_name(dtype: Dtype) -> str:
    """The name of a type."""
    return dtype if isinstance(dtype, str) else str(dtype).lower()


def check_one_type(layer: str, param_dtype: Dtype, compute_dtype: Dtype) -> None:
    """A layer computes in the type of its parameters; anything else is refused."""
    if type_name(param_dtype) != type_name(compute_dtype):
        raise ValueError(
            f"{layer}: compute_dtype {compute_dtype} with parameters of {param_dtype}: computing in another type is "
            f"not available yet; use one type"
        )


def make_parameter(spec: ShardSpec, initial: Normal | Constant, dtype: Dtype = "float32") -> Parameter:
    """This rank's shard of a parameter, zero until `initialize_parameters`."""
    shape = place(spec, parallel_state.get_coordinates()).shape
    parameter = Parameter(as_type(np.zeros(shape, np.float32), getattr(ms, type_name(dtype))), name="unnamed")
    parameter.shard = spec
    parameter.initial = initial
    return parameter


def as_type(values: np.ndarray, dtype: ms.Type) -> Tensor:
    """A tensor of this type over float32 values."""
    tensor = Tensor.from_numpy(values)
    return tensor if dtype == ms.float32 else tensor.astype(dtype)


def _global_name(path: str) -> str:
    """A parameter's path below the language model, which is where Megatron's names start."""
    return path.rpartition("language_model.")[2]


def name_parameters(model: nn.Cell) -> list[Parameter]:
    """Give every parameter of the model its global name; the parameters, in the model's order, each once.

    A parameter of a user's own cell that has no `shard` is taken as replicated; one that is applied to pieces of the
    sequence says so as in Megatron, by an attribute `sequence_parallel = True`.
    """
    parameters = []
    for path, parameter in model.parameters_and_names():
        if not hasattr(parameter, "shard"):
            on_pieces = getattr(parameter, "sequence_parallel", False)
            parameter.shard = ShardSpec(
                shape=tuple(parameter.shape),
                partial_over="tp" if on_pieces else None,
                weight_decay=len(parameter.shape) > 1 and not path.endswith(".bias"),
            )
        if not parameter.shard.name:
            parameter.shard = parameter.shard.named(_global_name(path))
        parameters.append(parameter)
    return parameters


def initialize_parameters(model: nn.Cell, seed: int) -> None:
    """Write the initial values: functions of (seed, global name, global index), whatever the layout."""
    coordinates = parallel_state.get_coordinates()
    for parameter in name_parameters(model):
        if hasattr(parameter, "initial"):
            values = parameter.initial.shard(seed, place(parameter.shard, coordinates))
            write_parameter(parameter, values)


def write_parameter(parameter: Parameter, values: np.ndarray) -> None:
    """Overwrite a parameter in place: its memory, which others may view, stays where it is."""
    ms.ops.assign(parameter, as_type(np.ascontiguousarray(values, np.float32), parameter.dtype))


def trainable(model: nn.Cell) -> Iterator[Parameter]:
    """The model's parameters that receive a gradient."""
    return (p for p in model.get_parameters() if p.requires_grad)
