"""Types of numbers by name: bytes of one number, and the type's name in files."""

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A numpy array of any shape and type."""


class DType(NamedTuple):
    """A type of numbers: the bytes of one, and the type's names in safetensors files, in numpy (of the type with the
    same bits) and in MindSpore's .ckpt files."""

    bytes: int
    safetensors: str
    numpy: str
    """Name of the numpy type with the same bits: uint16 for bfloat16, which numpy has not."""
    mindspore: str
    """Name of the type in a MindSpore .ckpt file."""


DTYPES = {
    "float32": DType(4, "F32", "float32", "Float32"),
    "float16": DType(2, "F16", "float16", "Float16"),
    "bfloat16": DType(2, "BF16", "uint16", "BFloat16"),
    "int32": DType(4, "I32", "int32", "Int32"),
    "int64": DType(8, "I64", "int64", "Int64"),
    "bool": DType(1, "BOOL", "bool", "Bool"),
}

FLOATS = ("float32", "float16", "bfloat16")
"""Types that trained weights may have, and that --compute-dtype may name."""
