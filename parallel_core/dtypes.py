"""Number types by name: how many bytes one takes, and what it is called in a safetensors file."""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """One type."""

    bytes: int
    safetensors: str
    numpy: str
    """The numpy type of its bits: numpy has no bfloat16."""


DTYPES = {
    "float32": DType(4, "F32", "float32"),
    "float16": DType(2, "F16", "float16"),
    "bfloat16": DType(2, "BF16", "uint16"),
    "int32": DType(4, "I32", "int32"),
    "int64": DType(8, "I64", "int64"),
    "bool": DType(1, "BOOL", "bool"),
}

FLOATS = ("float32", "float16", "bfloat16")
"""Types of weights and of what layers compute in."""
