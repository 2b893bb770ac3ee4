"""MindSpore's own operators in the 16-bit types whose kernels an Ascend has and a CPU lacks.

Whoever composes an operator of many for an Ascend counts on the type's kernels there. A CPU has almost all of float16's
and few of bfloat16's, least of all those of gradients. So each operator here takes bfloat16 by itself: widened to
float32, computed by its own CPU kernel, rounded. Results between two operators are rounded as on the device, and types
that don't go together are still MindSpore's own business. In-place operators take neither 16-bit type on a CPU.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops

from pynative.kernels.ops import activation
from pynative.memory.arrays import array_of, array_type
from pynative.memory.rounding import convert
from pynative.tape.autograd import is_recording, needs_gradient
from tests.support.ascend.definitions import FLOATS, SIXTEEN_BITS

OF_OPS = (
    "amax", "erf", "exp", "gather", "gather_d", "log", "masked_fill", "maximum", "mean", "relu", "rsqrt", "select",
    "sigmoid", "silu", "softmax", "split", "square", "stack", "tile",
)  # fmt: skip
OF_TENSORS = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__getitem__",
    "sum",
)  # fmt: skip
PRIMITIVES = (ops.MatMul, ops.BatchMatMul)

BFLOAT16, FLOAT32 = mindspore.bfloat16, mindspore.float32


def _types(arguments: Iterable[Any]) -> set:
    """The floating-point types among tensors, also of tensors in tuples."""
    flat = [x for each in arguments for x in (each if isinstance(each, tuple | list) else (each,))]
    return {x.dtype for x in flat if isinstance(x, Tensor) and x.dtype in FLOATS}


def _converted(value: Any, origin: object, target: object) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_converted(x, origin, target) for x in value)
    return ops.cast(value, target) if isinstance(value, Tensor) and value.dtype == origin else value


def _cast(real: Callable) -> Callable:
    """A faster cast between floating-point types, outside of the tape; MindSpore's takes ten times as long on a CPU,
    and bfloat16 is little else here."""

    @wraps(real)
    def call(x: Tensor, dtype: Any, *others: Any) -> Tensor:
        on_tape = is_recording() and needs_gradient(x)
        if others or on_tape or not {dtype, x.dtype} <= {*FLOATS} or not x.size:
            return real(x, dtype, *others)
        result = np.empty(x.shape, array_type(dtype))
        convert(array_of(x), result)
        return Tensor.from_numpy(result)

    return call


def in_bfloat16(real: Callable) -> Callable:
    """The operator, which also takes bfloat16. Operands of several types are still left to MindSpore: promoted or
    refused."""

    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _types((*args, *kwargs.values())) != {BFLOAT16}:
            return real(*args, **kwargs)
        result = real(
            *(_converted(x, BFLOAT16, FLOAT32) for x in args),
            **{name: _converted(x, BFLOAT16, FLOAT32) for name, x in kwargs.items()},
        )
        return _converted(result, FLOAT32, BFLOAT16)

    return call


def _writing(real: Callable, adds: bool) -> Callable:
    """`assign` or, with `adds`, `assign_add`, which also writes into 16-bit tensors, rounding once."""

    @wraps(real)
    def call(variable: Tensor, value: Tensor) -> Tensor:
        if variable.dtype not in SIXTEEN_BITS:
            return real(variable, value)
        memory, given = variable.asnumpy(), value.asnumpy().astype("float32")
        memory[...] = memory.astype("float32") + given if adds else given
        return variable

    return call


def replacements() -> list[tuple[Any, str, Callable]]:
    """[(owner, name, function to put there)] of every operator that takes 16 bits here as on an Ascend."""
    places = [*((ops, name) for name in OF_OPS), *((Tensor, name) for name in OF_TENSORS)]
    places += [(primitive, "__call__") for primitive in PRIMITIVES]
    return [
        *((owner, name, in_bfloat16(getattr(owner, name))) for owner, name in places),
        *((owner, name, _cast(getattr(owner, name))) for owner, name in ((ops, "cast"), (Tensor, "astype"))),
        (ops, "assign", _writing(ops.assign, adds=False)),
        (ops, "assign_add", _writing(ops.assign_add, adds=True)),
    ]


ACTIVATIONS = {name: in_bfloat16(function) for name, function in activation.ACTIVATIONS.items() if name in OF_OPS}
"""Activations of our table that are MindSpore operators themselves, taking bfloat16."""
