"""Types of parts of the network as files name them: each is float32 or the type that the rest computes in.

Every function takes the value of its key and the compute type, and gives fields by the ends of their paths. It raises
ValueError, with the rule, for a word that is no type and for a type that this part cannot have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mapping.flags.notations import dtype
from mapping.readers.meaning import Values
from parallel_core.dtypes import FLOATS

Types = Callable[[Any, str], Values]


def compute_dtype(value: Any) -> Values:
    """The compute type, and the precision that it is."""
    kind = _read(value, FLOATS)
    return {"compute_dtype": kind, "bf16": kind == "bfloat16", "fp16": kind == "float16"}


def softmax(value: Any, compute: str) -> Values:
    return {"attention_softmax_in_fp32": _read(value, ("float32", compute)) == "float32"}


def logits(value: Any, compute: str) -> Values:
    allowed = ("float32", "float16") if compute == "float16" else ("float32",)
    return {"fp16_lm_cross_entropy": _read(value, allowed) == "float16"}


def gradients(value: Any, compute: str) -> Values:
    kind = _read(value, ("float32", "bfloat16") if compute == "bfloat16" else ("float32",))
    return {"accumulate_allreduce_grads_in_fp32": kind == "float32", "grad_reduce_in_bf16": kind == "bfloat16"}


def residual(value: Any, compute: str) -> Values:
    kind = _read(value, ("float32", compute))
    return {"fp32_residual_connection": kind == "float32" != compute}


def either(value: Any, compute: str) -> Values:
    """A type that only can be said: nothing is computed otherwise."""
    _read(value, ("float32", compute))
    return {}


def _read(value: Any, allowed: tuple[str, ...]) -> str:
    try:
        kind = dtype(value) if isinstance(value, str) else ""
    except ValueError:
        kind = ""
    if kind not in allowed:
        raise ValueError(f"must be one of {', '.join(dict.fromkeys(allowed))}")
    return kind
