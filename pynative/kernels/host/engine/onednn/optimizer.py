"""An optimizer's update in three sweeps: each average, and the parameter from both. None is kept between.

What changes from step to step comes in as arrays of one entry, so that primitives are made once.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.onednn import primitives
from pynative.onednn.arrays import row_layout
from pynative.onednn.library import Algorithm
from pynative.onednn.primitives import Binary, Eltwise, Sum


def adamw(param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, step: AdamwStep) -> bool:
    """`interface.Engine.adamw`; False where there is no fast way.

    param = decay (param + m / (sqrt(v) + e) c), where e and c hold the corrections of both averages.
    """
    if not step.decay:
        return False
    one, row = row_layout(_entry(1.0)), row_layout(param)
    multiply = Algorithm.MULTIPLY
    scaled, added = Binary(multiply, one), Binary(Algorithm.ADD, row)
    average = primitives.binary(multiply, row, one, row, (Sum(step.beta1),))
    square = primitives.binary(multiply, row, one, row, (Eltwise(Algorithm.SQUARE), Sum(step.beta2)))
    moved = (
        Eltwise(Algorithm.SQRT), Binary(Algorithm.ADD, one), Eltwise(Algorithm.POWER, 1.0, -1.0),
        Binary(multiply, row), scaled, added, scaled,
    )  # fmt: skip
    update = primitives.binary(multiply, row, one, row, moved)
    if average is None or square is None or update is None:
        return False
    epsilon = _entry(step.epsilon / step.inverse_correction)
    factor = _entry(-step.step_size / step.inverse_correction / step.decay)
    average(grad, _entry(step.gradient_factor), exp_avg)
    square(grad, _entry(step.square_factor), exp_avg_sq)
    update(exp_avg_sq, _entry(1.0), param, epsilon, exp_avg, factor, param, _entry(step.decay))
    return True


def _entry(value: float) -> Array:
    return np.array([value], np.float32)
