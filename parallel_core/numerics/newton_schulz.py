"""Newton-Schulz iterations: odd polynomials a X + b (X X^T) X + c (X X^T)^2 X that bring singular values near 1.

Higham, "Functions of Matrices", 2008, chapter 8; coefficients for few steps are Jordan et al.'s and others', as named.
"""

from collections.abc import Callable
from itertools import chain, cycle, islice, repeat
from math import sqrt
from typing import NamedTuple


class Polynomial(NamedTuple):
    """The coefficients of one Newton-Schulz iteration, a X + b (X X^T) X + c (X X^T)^2 X."""

    a: float
    b: float
    c: float


COEFFICIENTS: dict[str, tuple[Polynomial, ...]] = {
    "simple": (Polynomial(3.4445, -4.7750, 2.0315),),
    "quintic": (
        Polynomial(4.0848, -6.8946, 2.9270),
        Polynomial(3.9505, -6.3029, 2.6377),
        Polynomial(3.7418, -5.5913, 2.3037),
        Polynomial(2.8769, -3.1427, 1.2046),
        Polynomial(2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        Polynomial(8.2051, -22.9019, 16.4607),
        Polynomial(4.0664, -2.8612, 0.5184),
        Polynomial(3.9096, -2.8234, 0.5250),
        Polynomial(3.2856, -2.4153, 0.4853),
        Polynomial(2.2779, -1.6198, 0.3985),
        Polynomial(1.8726, -1.2307, 0.3585),
        Polynomial(1.8564, -1.2132, 0.3568),
        Polynomial(1.8750, -1.2500, 0.3750),
    ),
    "cans": (
        Polynomial(8.4703, -25.1081, 18.6293),
        Polynomial(4.1828, -3.1087, 0.5806),
        Polynomial(3.9619, -2.9541, 0.5630),
        Polynomial(3.2866, -2.4647, 0.5074),
        Polynomial(2.2737, -1.6447, 0.4162),
    ),
    "aol": (
        Polynomial(4.0098, -7.0585, 2.4635),
        Polynomial(3.4585, -5.5479, 2.5959),
        Polynomial(2.7573, -3.2939, 1.4254),
        Polynomial(2.7215, -3.0494, 1.3169),
    ),
    "deepseekv4": (*[Polynomial(3.4445, -4.7750, 2.0315)] * 8, *[Polynomial(2.0, -1.5, 0.5)] * 2),
}
"""--muon-coefficient-type -> the polynomials of the first iterations. simple: Jordan et al., "Muon", 2024. quintic:
Cesista et al., "Squeezing 1-2% efficiency gains out of Muon", 2025. polar_express: Amsel et al., arXiv 2505.16932,
2025. cans: Grishina et al., arXiv 2506.10935, 2025. aol: Boissin et al., 2025. deepseekv4: DeepSeek, 2026."""


_ENDS_WITH_ITS_LAST = ("polar_express", "cans", "deepseekv4")


def coefficients(kind: str, steps: int) -> tuple[Polynomial, ...]:
    """The polynomials of `steps` iterations: the kind's list (`COEFFICIENTS`) from its beginning. Beyond its end it
    begins anew; of polar_express, cans and deepseekv4 the last polynomial is repeated instead."""
    polynomials = COEFFICIENTS[kind]
    more = repeat(polynomials[-1]) if kind in _ENDS_WITH_ITS_LAST else cycle(polynomials)
    return tuple(islice(chain(polynomials, more), steps))


PRECISIONS = {"medium": "bfloat16", "high": "float32"}
"""--muon-fp32-matmul-prec -> the type in which iterations keep a matrix; products are summed in float32."""

SCALES: dict[str, Callable[[int, int], float]] = {
    "spectral": lambda outputs, inputs: sqrt(max(outputs, inputs)),
    "unit_rms_norm": lambda outputs, inputs: sqrt(outputs / inputs),
    "shape_scaling": lambda outputs, inputs: sqrt(max(1.0, outputs / inputs)),
}
"""--muon-scale-mode -> the factor of an orthogonal matrix [outputs, inputs]: Liu et al., arXiv 2502.16982, 2025;
Pethick et al., arXiv 2502.07529, 2025; Jordan et al., 2024."""
