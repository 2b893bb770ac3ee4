"""Weights of 8 bits as DeepSeek publishes them: multiplied by their blocks' scales while they are read.

A weight `X` of float8 (e4m3: sign, 4 bits of exponent, 3 of mantissa; Micikevicius et al., 2022) comes with
`X_scale_inv`, a factor for each block of it. The products are rounded to bfloat16.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.checkpoint.lazy import FLOAT8, LazyTensor, to_bfloat16
from parallel_core.numerics.dtypes import Array

_SCALE = "_scale_inv"


def block_of(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) of a block of a weight that shares a factor, by `quantization_config` in config.json; None
    without one. Raises ValueError for another quantisation than DeepSeek's, float8 (e4m3) by blocks."""
    said = config.get("quantization_config")
    if said is None:
        return None
    method, kind, block = said.get("quant_method"), said.get("fmt", "e4m3"), said.get("weight_block_size")
    if (method, kind) != ("fp8", "e4m3") or not (isinstance(block, list) and len(block) == 2 and min(block) > 0):
        raise ValueError(
            f"config.json: quantization_config of quant_method {method!r}, fmt {kind!r}, weight_block_size {block} is "
            f"not known here, only 'fp8', 'e4m3' and two sizes; save the model in bfloat16 first"
        )
    return block[0], block[1]


def dequantised(tensors: Mapping[str, LazyTensor], block: tuple[int, int] | None) -> dict[str, LazyTensor]:
    """Name -> tensor, float8 weights multiplied by their factors, as bfloat16, and without the factors. block: number
    of rows and of columns that share a factor; None: no tensor is a factor. Raises ValueError if a float8 weight has no
    factors, factors have no weight, or both do not fit."""
    scales = {name: tensor for name, tensor in tensors.items() if block and name.endswith(_SCALE)}
    found = {name: tensor for name, tensor in tensors.items() if name not in scales}
    if block:
        for name, factors in scales.items():
            weight = name.removesuffix(_SCALE)
            if weight not in found:
                raise ValueError(f"{weight}: is missing, and {name} is there")
            found[weight] = _multiplied(weight, found[weight], factors, block)
    bare = next((name for name, tensor in found.items() if tensor.dtype == FLOAT8), None)
    if bare is not None:
        raise ValueError(f"{bare}: is {FLOAT8}, and has no factors {bare}{_SCALE}; save the model in bfloat16 first")
    return found


def _multiplied(name: str, tensor: LazyTensor, scales: LazyTensor, block: tuple[int, int]) -> LazyTensor:
    rows, columns = block
    wanted = tuple(-(-length // size) for length, size in zip(tensor.shape, block, strict=False))
    if tensor.dtype != FLOAT8 or len(tensor.shape) != len(block) or scales.shape != wanted:
        raise ValueError(
            f"{name}: {list(tensor.shape)} {tensor.dtype} with factors of shape {list(scales.shape)}; blocks of "
            f"{rows} x {columns} want a matrix of {FLOAT8} and {list(wanted)}"
        )

    def load() -> Array:
        bits, factors = tensor.read(), scales.widened().astype(np.float32)
        out = np.empty(tensor.shape, np.uint16)
        for number, of_columns in enumerate(factors):
            part = slice(number * rows, (number + 1) * rows)
            out[part] = to_bfloat16(_VALUES[bits[part]] * np.repeat(of_columns, columns)[: tensor.shape[1]])
        return out

    return LazyTensor(tensor.shape, "bfloat16", load)


def _values() -> Array:
    """The values, float32 [256], of the 8-bit patterns 0 to 255."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    size[bits & 127 == 127] = np.nan
    return np.where(bits < 128, size, -size).astype(np.float32)


_VALUES = _values()
