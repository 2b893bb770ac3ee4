"""The activation functions of a feed-forward block: which are gated, and what computes each."""

from dataclasses import dataclass


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
    "swiglu": Activation("swiglu", gated=True),
    "squared_relu": Activation("squared_relu"),
    "relu": Activation("relu"),
    "silu": Activation("silu"),
}
"""Value of --hidden-act -> activation."""

GATES = {"swiglu": "silu", "geglu_erf": "gelu_erf", "geglu_tanh": "gelu_tanh"}
"""Operator of a gated activation -> the operator that its gate goes through."""
