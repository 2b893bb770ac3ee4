"""What a router decided about a micro-batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mindspore import Tensor


class Routing(NamedTuple):
    """Which experts the T tokens of a rank go to, k each, and with which weights."""

    probs: Tensor
    """[T, k] float32, recorded: the weight of each choice's result; 0 where it was dropped."""
    experts: Tensor
    """[T, k] int32, global numbers of experts; -1 where a choice was dropped."""
    capacity: int | np.ndarray | None = None
    """The most rows that an expert, or int64 [E] each, keeps of this rank's tokens; none: all."""
