"""Operations as values: how much arithmetic and how many bytes of memory one rank's device has to do for a block.

m rows (tokens), k inner size, n columns of a product.
"""

from dataclasses import dataclass

from parallel_core.numerics.dtypes import DTYPES

FLOAT32 = DTYPES["float32"].bytes

PRODUCTS, ATTENTION, ELEMENTWISE = "products", "attention", "elementwise"


@dataclass(frozen=True)
class Work:
    """One pass over an operation's data."""

    flops: float = 0.0
    """A multiply-add counts as two."""
    bytes: float = 0.0
    """Read from and written to the device's memory."""
    launches: int = 0
    """Kernels that the host starts."""
    inputs: float = 0.0
    """Those of `bytes` that are a product's two inputs, which have fewer in an 8-bit type."""

    def __add__(self, other: "Work") -> "Work":
        launches, inputs = self.launches + other.launches, self.inputs + other.inputs
        return Work(self.flops + other.flops, self.bytes + other.bytes, launches, inputs)


NOTHING = Work()


@dataclass(frozen=True)
class Operation:
    """An operation of one micro-batch on one rank, and its gradients."""

    kind: str
    """PRODUCTS, ATTENTION (scores and their sums of values) or ELEMENTWISE."""
    forward: Work
    backward: Work
    """The gradient of the input."""
    weight: Work = NOTHING
    """The gradient of the weight, which no other operation waits for."""
    name: str = ""
    """The path of its block, without layer numbers."""
    runs_again: bool = False
    """Whether the backward computes the forward again."""
    scores: float = 0.0
    """For attention: elements of its matrix of scores, which a device without a fused operator writes to memory."""

    def within(self, module: str) -> "Operation":
        """The same, as a part of `module`. Written out, because `replace` takes three times as long."""
        name = f"{module}.{self.name}" if self.name else module
        return Operation(self.kind, self.forward, self.backward, self.weight, name, self.runs_again, self.scores)


def product(m: float, k: int, n: int, item_size: int, *, count: int = 1, trains: bool = True) -> Operation:
    """y [m, n] = x [m, k] w [n, k]^T, `count` times with other weights, whose gradients are added up in float32."""
    flops, size = 2.0 * count * m * k * n, count * item_size
    of_x, of_weight, of_y = m * k * size, k * n * size, m * n * size
    forward, backward = (Work(flops, of_x + of_weight + of_y, 1, of_weight + read) for read in (of_x, of_y))
    gradient = Work(flops, of_x + of_y + 2 * count * k * n * FLOAT32, 1, of_x + of_y) if trains else NOTHING
    return Operation(PRODUCTS, forward, backward, gradient)


def elementwise(forward: float, backward: float, launches: int = 1) -> Operation:
    """Bytes of a sweep over activations, and of its gradient's."""
    return Operation(ELEMENTWISE, Work(0.0, forward, launches), Work(0.0, backward, launches))


def attention(flops: float, bytes_moved: float, scores: float) -> Operation:
    """Scores and values. Backward multiplies five times for the two of the forward (Dao et al., 2022)."""
    return Operation(ATTENTION, Work(flops, bytes_moved, 1), Work(2.5 * flops, 2 * bytes_moved, 2), scores=scores)
