"""MindSpore's own definition of an operator, asked whether it accepts a call.

A call of an Ascend operator on a CPU passes through all that MindSpore knows about it - names, order, number and types
of arguments, then inference of shapes and types - and only stops where a kernel is looked up. So the real operator is
called first, and must get exactly that far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import mindspore
from mindspore import Tensor
from mindspore.graph.api import _pynative_executor
from mindspore.ops import Primitive

from pynative.tape.autograd import no_grad

NO_KERNEL = ("unregistered", "Create kernelmod for op")
"""Parts of MindSpore 2.10's errors on a CPU about an operator that only an Ascend has."""

FLOATS = (mindspore.float16, mindspore.bfloat16, mindspore.float32)
SIXTEEN_BITS = (mindspore.float16, mindspore.bfloat16)


class Refused(ValueError):
    """A call that an Ascend would not take."""


def require(rule: bool, message: str) -> None:
    """Raise Refused with this message unless a documented limit of a kernel holds."""
    if not rule:
        raise Refused(message)


def require_tensors(kernel: str, **tensors: Tensor | None) -> None:
    """Raise Refused unless all that are not None are non-empty tensors of floating-point types."""
    for name, x in tensors.items():
        require(x is None or isinstance(x, Tensor), f"{kernel}: {name} is no tensor but {type(x).__name__}")
        require(x is None or x.dtype in FLOATS, f"{kernel}: {name} is {x is not None and x.dtype}, not of {FLOATS}")
        require(x is None or x.size > 0, f"{kernel}: {name} is empty")


_asking = False
"""Whether a definition is being asked; then operators are MindSpore's own, as one of them may be made of another."""


_accepted: set[tuple] = set()
"""Calls that were accepted, by types and shapes, which is all that a definition looks at: asking costs milliseconds."""


def _described(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_described, value))
    return (value.shape, str(value.dtype)) if isinstance(value, Tensor) else (type(value), repr(value))


def defined(real: Callable, *args: Any, **kwargs: Any) -> None:
    """Check that MindSpore's definition of `real` accepts these arguments; raises MindSpore's own error, or LookupError
    if it runs on a CPU."""
    global _asking
    settings = sorted(vars(args[0]).items()) if args and isinstance(args[0], Primitive) else ()
    call = (real, repr(settings), *map(_described, args), *sorted((n, _described(x)) for n, x in kwargs.items()))
    if call in _accepted:
        return
    _asking = True
    try:
        with no_grad():
            real(*args, **kwargs)
            _pynative_executor.sync()
    except RuntimeError as error:
        if any(words in str(error) for words in NO_KERNEL):
            _accepted.add(call)
            return
        raise
    finally:
        _asking = False
    raise LookupError(f"{real} runs on a CPU: it needs no double")


@dataclass(frozen=True)
class Double:
    """A double of MindSpore's operator `owner.name`."""

    owner: Any
    name: str
    function: Callable

    def checked(self) -> Callable:
        """The double behind MindSpore's own check of the call, to be put in the operator's place."""
        real, own = getattr(self.owner, self.name), self.function

        @wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _asking:
                return real(*args, **kwargs)
            defined(real, *args, **kwargs)
            return own(*args, **kwargs)

        return call

    def arguments(self) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        """(name, default) of MindSpore's arguments and of the double's, which must be equal."""
        return _arguments(getattr(self.owner, self.name)), _arguments(self.function)


def _arguments(function: Callable) -> list[tuple[str, Any]]:
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [(p.name, p.default) for p in signature(function).parameters.values() if p.kind not in kinds]
