"""The operators that a GPT model is made of: what every stack of implementations has, by these names and arguments.

Letters in shapes: s sequence, b batch, h hidden, n heads, g key/value groups, d size of a query's and a key's head,
e of a value's, f feed-forward size, i inputs, o outputs, v vocabulary, t tensor-parallel size; `...` any leading axes.
Activations are [s, b, ...] tensors of float32, float16 or bfloat16. Operators are recorded on the tape unless said
otherwise; gradients of parameters go where `autograd.add_weight_gradient` puts them. Dropout keys are tuples of
non-negative integers (`dropout.py`).

The public functions of the modules here, but for `table`, are the operators: a signature, whose text is the
specification. A body is the function of the same name in a module of `host`, `ops` or `ascend`; a test compares its
arguments with the contract's.
"""

from types import ModuleType

from pynative.kernels.contract.table import Table, modules, written_in

_MODULES = modules(
    __name__, "linear layer attention sparse entries recurrent streams exchange experts vocabulary flat_buffers"
)

CONTRACT: Table = {name: operator for module in _MODULES for name, operator in written_in(module).items()}
"""Name -> signature, of every operator."""


def bodies_in(*modules: ModuleType) -> Table:
    """Name -> function, of the contract's operators that are written in these modules. Raises AssertionError if two of
    the modules have the same operator."""
    found = [(name, body) for module in modules for name, body in written_in(module).items() if name in CONTRACT]
    bodies = dict(found)
    assert len(bodies) == len(found), f"written twice: {sorted(name for name, body in found if bodies[name] != body)}"
    return bodies
