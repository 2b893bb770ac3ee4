"""The operators on a CPU, of oneDNN and numpy; most share blocks of rows out among threads of our own."""

from pynative.kernels.contract import bodies_in
from pynative.kernels.contract.table import modules

_MODULES = (
    "activation attention cache convolution elementwise entries exchange experts float8 gates latent_heads linear norm "
    "optimizer recurrent residual rotary routing sinks sparse state_space streams vocabulary"
)

OPERATORS = bodies_in(*modules(__name__, _MODULES))
