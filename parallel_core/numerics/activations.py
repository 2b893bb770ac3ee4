"""The activation functions of a feed-forward block: whether each is gated, and the operator that computes it."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True)
class Activation:
    """The activation that a value of --hidden-act names: the operator that computes it, the operator where bias and
    activation are not fused (`without_fusion`; None: the same), and whether it is gated."""

    operator: str
    """Name of the activation among those of `pynative.kernels`."""
    gated: bool = False
    """Whether the first linear gives twice as much, of which one half gates the other ("GLU variants", Shazeer,
    2020)."""
    without_fusion: str | None = None
    """Name of the operator where bias and activation are not fused (--no-bias-gelu-fusion, or linears without a bias);
    None: the same one."""


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
"""Name of a gated operator -> the operator that its gate goes through."""


QUICK_SLOPE = 1.702
"""Slope of gelu_quick, x sigmoid(1.702 x) (Hendrycks & Gimpel, 2016)."""


class GatedUnit(NamedTuple):
    """A gated activation of two halves g and u, a(min(gain x g, limit)) x (clip(u, -limit, limit) + offset), where
    `gate` names the operator a (gpt-oss, 2025; the gain: Falcon-H1, 2025)."""

    gate: str
    """Name of the operator a."""
    limit: float = math.inf
    offset: float = 0.0
    gain: float = 1.0

    @property
    def is_limited(self) -> bool:
        """Whether the activation has a `limit` or an `offset`; a gain alone does not count."""
        return bool(self.limit != math.inf or self.offset)


def adjusted(operator: str, limit: float | None, offset: float, gain: float = 1.0) -> str:
    """The name of a gated operator followed by limit, offset and gain, as `gated_unit` reads it; the plain name where
    these change nothing. limit: None or 0 is no limit."""
    unit = limit or math.inf, offset, gain
    return operator if unit == (math.inf, 0.0, 1.0) else " ".join(map(str, (operator, *unit)))


@lru_cache
def gated_unit(operator: str) -> GatedUnit | None:
    """The gated activation that an operator's name describes, with its numbers; None for an operator that is not
    gated."""
    name, *numbers = operator.split(" ")
    return GatedUnit(GATES[name], *map(float, numbers)) if name in GATES else None
