"""The activation functions of a feed-forward block: which are gated, and what computes each."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True)
class Activation:
    """One value of --hidden-act."""

    operator: str
    """The activation's name among the operators."""
    gated: bool = False
    """The first linear is doubled, and one half gates the other ("GLU variants", Shazeer, 2020)."""
    without_fusion: str | None = None
    """The operator where bias and activation are not fused (--no-bias-gelu-fusion, or linears without a bias)."""


ACTIVATIONS = {
    "gelu": Activation("gelu_tanh", without_fusion="gelu_erf"),
    "geglu": Activation("geglu_erf", gated=True),
    "geglu_tanh": Activation("geglu_tanh", gated=True),
    "quick_geglu": Activation("geglu_quick", gated=True),
    "swiglu": Activation("swiglu", gated=True),
    "squared_relu": Activation("squared_relu"),
    "relu": Activation("relu"),
    "silu": Activation("silu"),
}
"""Value of --hidden-act -> activation."""

GATES = {"swiglu": "silu", "geglu_erf": "gelu_erf", "geglu_tanh": "gelu_tanh", "geglu_quick": "gelu_quick"}
"""Operator of a gated activation -> the operator that its gate goes through."""


QUICK_SLOPE = 1.702
"""Slope of gelu_quick, x sigmoid(1.702 x) (Hendrycks & Gimpel, 2016)."""


class GatedUnit(NamedTuple):
    """a(min(gate, limit)) x (clip(up, -limit, limit) + offset) (gpt-oss, 2025)."""

    gate: str
    """The operator a."""
    limit: float = math.inf
    offset: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is clipped or added."""
        return self == GatedUnit(self.gate)


def limited(operator: str, limit: float | None, offset: float) -> str:
    """The name of a gated activation with a limit and an offset."""
    return operator if limit is None and not offset else f"{operator} {limit or math.inf} {offset}"


@lru_cache
def gated_unit(operator: str) -> GatedUnit | None:
    """The activation in an operator's name; none: it is not gated."""
    name, *numbers = operator.split(" ")
    return GatedUnit(GATES[name], *map(float, numbers)) if name in GATES else None
