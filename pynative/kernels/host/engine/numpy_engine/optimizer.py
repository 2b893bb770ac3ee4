"""An optimizer's update, in place."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.interface import AdamwStep


def adamw(param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, step: AdamwStep) -> None:
    """See `interface.Engine.adamw`."""
    scratch = grad * np.float32(step.gradient_factor)
    exp_avg *= np.float32(step.beta1)
    exp_avg += scratch
    np.multiply(grad, np.float32(step.square_factor), out=scratch)
    np.square(scratch, out=scratch)
    exp_avg_sq *= np.float32(step.beta2)
    exp_avg_sq += scratch
    np.sqrt(exp_avg_sq, out=scratch)
    scratch *= np.float32(step.inverse_correction)
    scratch += np.float32(step.epsilon)
    np.divide(exp_avg, scratch, out=scratch)
    scratch *= np.float32(step.step_size)
    param *= np.float32(step.decay)
    param -= scratch
