"""The contract's operators, composed of MindSpore's operators, which a CPU has as well as an Ascend.

MindSpore's tape differentiates operators that have no backward of their own, and on a CPU the casts of 16-bit types
(`widened`): gradients of parameters that come this way arrive in the parameters' `_grad` (`autograd.TapeGradients`
moves them).
"""

from pynative.kernels.contract import bodies_in
from pynative.kernels.contract.table import modules

_MODULES = (
    "activation attention cache elementwise entries exchange experts float8 latent_heads linear norm optimizer "
    "recurrent residual rotary routing sinks sparse streams vocabulary"
)

OPERATORS = bodies_in(*modules(__name__, _MODULES))
