"""The weight of the norm behind a gated delta net's recurrence, which Megatron stores minus 1 with --apply-layernorm-1p
as those of other norms; here, as in HuggingFace's files, it is the weight itself."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor, from_bfloat16, to_bfloat16
from parallel_core.numerics.dtypes import Array
from parallel_core.optimizer import MAIN_PARAM

_NAME = ".self_attention.out_norm.weight"


def as_ours(model: Model) -> Model:
    """Megatron's model with 1 added to the weights of norms behind gated delta nets and to their float32 copies, if it
    has --apply-layernorm-1p; in 16 bits they are rounded again."""
    return _moved(model, 1.0)


def as_megatrons(model: Model) -> Model:
    """Our model with 1 taken off the weights of norms behind gated delta nets and off their float32 copies, if it has
    --apply-layernorm-1p; in 16 bits they are rounded again."""
    return _moved(model, -1.0)


def _moved(model: Model, by: float) -> Model:
    if not model.network.get("apply_layernorm_1p"):
        return model
    states = {MAIN_PARAM: _all(model.states[MAIN_PARAM], by)} if MAIN_PARAM in model.states else {}
    return replace(model, weights=_all(model.weights, by), states=model.states | states)


def _all(tensors: Mapping[str, LazyTensor], by: float) -> dict[str, LazyTensor]:
    return {
        name: tensor.changed(tensor.shape, partial(_sum, tensor.dtype, np.float32(by)))
        if name.endswith(_NAME)
        else tensor
        for name, tensor in tensors.items()
    }


def _sum(dtype: str, by: np.float32, bits: Array) -> Array:
    if dtype == "bfloat16":
        return to_bfloat16(from_bfloat16(bits) + by)
    return (bits.astype(np.float32) + by).astype(bits.dtype)
