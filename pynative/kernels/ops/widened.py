"""The operators of `ops` in 16-bit types on a CPU, where MindSpore lacks many kernels for them: those of `TYPE_GIVERS`
get their arguments widened to float32, and their results are rounded (`widened`).

An Ascend does not use this module. Without a 16-bit argument an operator is called as it is.
"""

from collections.abc import Iterable
from functools import wraps
from inspect import signature
from typing import Any

import mindspore

from pynative.kernels.contract import bodies_in
from pynative.kernels.contract.table import Operator, Table
from pynative.kernels.ops import OPERATORS as COMPOSED
from pynative.kernels.ops import blocked_attention
from pynative.kernels.ops.elementwise import TYPE_GIVERS, cast

FLOAT16, BFLOAT16 = mindspore.float16, mindspore.bfloat16


def widened(operator: Operator, *type_givers: str) -> Operator:
    """The operator computed in float32 if any argument is a float16 or bfloat16 tensor (one inside a list does not
    count, but is widened with the others). Its result, a tensor or a tuple of them, then has the type of the first
    argument among `type_givers` that is not None; where the argument `out` is not None (a list of None, too), the
    operator's own result is returned as it is."""
    bind = signature(operator).bind

    @wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _any_narrow(args) and not _any_narrow(kwargs.values()):
            return operator(*args, **kwargs)
        given = bind(*args, **kwargs).arguments
        result = operator(**{name: x if name == "out" else _wide(x) for name, x in given.items()})
        if given.get("out") is not None:
            return result
        dtype = next(given[name].dtype for name in type_givers if given.get(name) is not None)
        return tuple(cast(x, dtype) for x in result) if isinstance(result, tuple) else cast(result, dtype)

    return call


def _any_narrow(arguments: Iterable[Any]) -> bool:
    for x in arguments:  # Runs at every call of an operator: `any` over `_is_narrow` would take twice as long.
        dtype = getattr(x, "dtype", None)
        if dtype is FLOAT16 or dtype is BFLOAT16:
            return True
    return False


def _is_narrow(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)  # `isinstance` and hashing a type of MindSpore take several times as long.
    return dtype is FLOAT16 or dtype is BFLOAT16


def _wide(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return [_wide(entry) for entry in x]
    return cast(x, mindspore.float32) if _is_narrow(x) else x


def of(table: Table) -> Table:
    """The table with the operators of `TYPE_GIVERS` widened, and the others as they are."""
    return {name: widened(f, *TYPE_GIVERS[f]) if f in TYPE_GIVERS else f for name, f in table.items()}


OPERATORS = of(COMPOSED)


def forms(input_layout: str) -> Table:
    """The one fused form that a flag may switch on: attention by blocks, which keeps no scores for its backward.
    input_layout: not read, since nothing here depends on it."""
    return of(bodies_in(blocked_attention))
