"""The meanings of keys in files that are types of parts of the network: most must be float32 or the type that the rest
computes in."""

from typing import Any

from mapping.flags.notations import dtype
from mapping.readers.meaning import Entries, Meaning, Values
from parallel_core.numerics.dtypes import FLOATS

_COMPUTE_TYPE = (
    *(f"accelerate_config.precision.{name}" for name in ("compute_dtype", "param_init_dtype")),
    *(f"model_config.{name}" for name in ("compute_dtype", "params_dtype")),
)
"""Keys of the compute type, which count if neither bf16 nor fp16 of the same file is true."""


def computed_in(entries: Entries) -> str:
    """The compute type that a file gives: bfloat16 if training_config.bf16 is true, else float16 if
    training_config.fp16 is, else the first that has a value of compute_dtype and param_init_dtype in
    accelerate_config.precision, compute_dtype and params_dtype in model_config; float32 where none has, or it is no
    known one."""
    for name, sixteen_bits in (("bf16", "bfloat16"), ("fp16", "float16")):
        if entries.get(f"training_config.{name}") is True:
            return sixteen_bits
    kind = next((entries[key] for key in _COMPUTE_TYPE if entries.get(key)), None)
    try:
        return dtype(kind) if isinstance(kind, str) else "float32"
    except ValueError:
        return "float32"


def compute_dtype(value: Any, entries: Entries) -> Values:
    """The meaning of the compute type: the field compute_dtype, and bf16 and fp16 as that type says. Raises
    ValueError for an unknown type."""
    kind = _read(value, FLOATS)
    return {"compute_dtype": kind, "bf16": kind == "bfloat16", "fp16": kind == "float16"}


def softmax(value: Any, entries: Entries) -> Values:
    return {"attention_softmax_in_fp32": _read(value, ("float32", computed_in(entries))) == "float32"}


def logits(value: Any, entries: Entries) -> Values:
    allowed = ("float32", "float16") if computed_in(entries) == "float16" else ("float32",)
    return {"fp16_lm_cross_entropy": _read(value, allowed) == "float16"}


def gradients(value: Any, entries: Entries) -> Values:
    kind = _read(value, ("float32", "bfloat16") if computed_in(entries) == "bfloat16" else ("float32",))
    return {"accumulate_allreduce_grads_in_fp32": kind == "float32", "grad_reduce_in_bf16": kind == "bfloat16"}


def residual(value: Any, entries: Entries) -> Values:
    compute = computed_in(entries)
    return {"fp32_residual_connection": _read(value, ("float32", compute)) == "float32" != compute}


def either(reason: str) -> Meaning:
    """The meaning of a type that changes nothing: a function that returns `reason` for float32 and the compute type,
    and raises ValueError for any other."""

    def read(value: Any, entries: Entries) -> str:
        _read(value, ("float32", computed_in(entries)))
        return reason

    return read


def _read(value: Any, allowed: tuple[str, ...]) -> str:
    try:
        kind = dtype(value) if isinstance(value, str) else ""
    except ValueError:
        kind = ""
    if kind not in allowed:
        raise ValueError(f"must be one of {', '.join(dict.fromkeys(allowed))}")
    return kind
