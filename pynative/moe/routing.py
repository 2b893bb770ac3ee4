"""What a router decided about a micro-batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mindspore import Tensor, ops

from parallel_core.moe.token_dispatch import NONE
from parallel_core.numerics.dtypes import Array


class Routing(NamedTuple):
    """Which experts the T tokens of a rank go to, k each, and with which weights."""

    probs: Tensor
    """[T, k] float32, recorded: the weight of each choice's result; 0 where it was dropped."""
    experts: Tensor
    """[T, k] int32, global numbers of experts; -1 where a choice was dropped."""
    capacity: int | Array | None = None
    """The most rows that an expert, or int64 [E] each, keeps of this rank's tokens; none: all."""

    @classmethod
    def of_dense(cls, probs: Tensor, routing_map: Tensor) -> Routing:
        """Megatron's form: probabilities [T, E] and the bool map [T, E] of choices; tokens may have several numbers of
        them."""
        chosen = routing_map.asnumpy()
        most = int(chosen.sum(axis=1).max(initial=1))
        experts = np.argsort(~chosen, axis=1, kind="stable")[:, :most].astype(np.int32)
        is_chosen = np.take_along_axis(chosen, experts, axis=1)
        weights = ops.gather_d(probs, 1, Tensor.from_numpy(experts))
        weights = weights * Tensor.from_numpy(is_chosen.astype(np.float32))
        return cls(weights, Tensor.from_numpy(np.where(is_chosen, experts, NONE).astype(np.int32)))

    def dense(self, experts: int) -> tuple[Tensor, Tensor]:
        """Megatron's form, of so many experts E: probabilities [T, E], recorded, and the bool map [T, E] of choices."""
        chosen = self.experts.asnumpy()[..., None] == np.arange(experts)
        probs = self.probs.expand_dims(-1) * Tensor.from_numpy(chosen.astype(np.float32))
        return probs.sum(1), Tensor.from_numpy(chosen.any(1))
