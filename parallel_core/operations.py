"""Operations as values: the arithmetic and the memory traffic, in bytes, that a block takes on one rank's device.

m rows (tokens), k inner size, n columns of a product.
"""

from dataclasses import dataclass

from parallel_core.numerics.dtypes import DTYPES

FLOAT32 = DTYPES["float32"].bytes

PRODUCTS, ATTENTION, ELEMENTWISE = "products", "attention", "elementwise"
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"
"""The three products of a linear."""
ATTENTION_GRADIENT, FIVE_FOR_TWO = "attention gradient", 2.5
"""The name of attention's backward, and its FLOPs for one of the forward."""
NORM, ACTIVATION, RESIDUAL, LOSS, EMBEDDING = "norm", "activation", "residual", "loss", "embedding"
"""Elementwise operators that a device may have measured; see `gradient_of` for their backwards."""


def gradient_of(named: str) -> str:
    """The name under which the backward of an elementwise operator is measured."""
    return f"{named} gradient"


@dataclass(frozen=True)
class Work:
    """The work of one pass of an operation: floating-point operations, bytes of memory traffic, launches of kernels.
    inputs: of a linear's product also the part of `bytes` that its two inputs are. sized: the name and the size under
    which a device's measurements of such work are looked up; None: work that is not measured."""

    flops: float = 0.0
    """Floating-point operations; a multiply-add counts as two."""
    bytes: float = 0.0
    """Bytes read from and written to the device's memory."""
    launches: int = 0
    """Number of kernels that the host starts, attention counted as a fused operator."""
    inputs: float = 0.0
    """The part of `bytes` that a product's two inputs are, which is less in an 8-bit type."""
    sized: tuple[str, float] | None = None
    """(which of a linear's three products this is, its number of tokens), or (ATTENTION or ATTENTION_GRADIENT, tokens
    of a sequence), or (NORM, ... or the name of its gradient, its bytes); None: another kind of work."""


NOTHING = Work()


@dataclass(frozen=True)
class Operation:
    """The work of an operation in one micro-batch on one rank: `forward`, the gradient of its input (`backward`) and of
    its weight (`weight`). kind: PRODUCTS, ATTENTION or ELEMENTWISE; name: path of its block, or of a part of it,
    in the model; runs_again: whether the backward computes the forward again; scores: elements of attention's matrix of
    scores."""

    kind: str
    """One of PRODUCTS, ATTENTION (scores and their sums of values) and ELEMENTWISE."""
    forward: Work
    backward: Work
    """Work of the gradient of the input."""
    weight: Work = NOTHING
    """Work of the gradient of the weight."""
    name: str = ""
    """The path of the operation's block in the model, without layer numbers; it may end with the name of a part that is
    no block, as `rotary`."""
    runs_again: bool = False
    """Whether the backward computes the forward again."""
    scores: float = 0.0
    """For attention: elements of its matrix of scores, which a device without a fused operator writes to memory; else
    0."""

    def within(self, module: str) -> "Operation":
        """The operation with `module` and a dot before its `name`; `module` alone where the name is empty."""
        name = f"{module}.{self.name}" if self.name else module
        return Operation(self.kind, self.forward, self.backward, self.weight, name, self.runs_again, self.scores)


def product(m: float, k: int, n: int, item_size: int, *, count: int = 1, trains: bool = True) -> Operation:
    """The product y [m, n] = x [m, k] w [n, k]^T, `count` times with different x and w, as one launch in each pass;
    gradients of weights are added up in float32. item_size: bytes of an element of x, w, y. trains: whether w has a
    gradient."""
    flops, size = 2.0 * count * m * k * n, count * item_size
    of_x, of_weight, of_y = m * k * size, k * n * size, m * n * size
    moved, inputs = of_x + of_weight + of_y, of_x + of_y
    forward = Work(flops, moved, 1, of_weight + of_x, (FORWARD, m))
    backward = Work(flops, moved, 1, of_weight + of_y, (INPUT_GRADIENT, m))
    gradient = Work(flops, inputs + 2 * count * k * n * FLOAT32, 1, inputs, (WEIGHT_GRADIENT, m)) if trains else NOTHING
    return Operation(PRODUCTS, forward, backward, gradient)


def bias_gradient(m: float, n: int, item_size: int) -> Operation:
    """The gradient of a linear's bias [n], the sum of the output's gradient [m, n] over its rows, without a launch of
    its own: most are sums in the backward of the operator that adds the bias. item_size: bytes of an element."""
    return Operation(ELEMENTWISE, NOTHING, Work(0.0, m * n * item_size))


def elementwise(forward: float, backward: float, launches: int = 1, named: str = "") -> Operation:
    """An elementwise operation on activations that moves `forward` bytes, and `backward` bytes for its gradient; its
    arithmetic counts as 0. launches: kernels of each of the two; named: NORM or another operator that a device may have
    measured, "": none of them."""
    sized, sized_back = ((named, forward), (gradient_of(named), backward)) if named else (None, None)
    work, back = Work(0.0, forward, launches, sized=sized), Work(0.0, backward, launches, sized=sized_back)
    return Operation(ELEMENTWISE, work, back)


def attention(flops: float, bytes_moved: float, scores: float, length: int, calls: int = 1) -> Operation:
    """Attention's scores and their sums of values, from the forward's FLOPs and bytes. The backward multiplies five
    times for the two of the forward (Dao et al., 2022), and moves twice as many bytes. scores: elements of the matrix
    of scores. length: tokens of a sequence. calls: attention operators of a pass, one for each block of a ring, each of
    an even part of the sequence."""
    part = length / calls
    forward = Work(flops, bytes_moved, calls, sized=(ATTENTION, part))
    backward = Work(FIVE_FOR_TWO * flops, 2 * bytes_moved, 2 * calls, sized=(ATTENTION_GRADIENT, part))
    return Operation(ATTENTION, forward, backward, scores=scores)
