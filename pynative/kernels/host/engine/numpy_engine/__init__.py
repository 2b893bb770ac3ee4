"""The engine that is always there: numpy and its BLAS, in place where it can be, nothing kept."""

from typing import Any

import numpy as np

from pynative.kernels.host.engine.numpy_engine import (
    activations,
    cross_entropy,
    norms,
    optimizer,
    products,
    scores,
    sums,
)


class NumpyEngine:
    """See `interface.Engine`."""

    name = "numpy"

    matmul = staticmethod(products.matmul)
    add = staticmethod(sums.add)
    sum_rows = staticmethod(sums.sum_rows)
    norm = staticmethod(norms.norm)
    norm_gradient = staticmethod(norms.norm_gradient)
    activation = staticmethod(activations.activation)
    activation_gradient = staticmethod(activations.activation_gradient)
    logit_statistics = staticmethod(cross_entropy.logit_statistics)
    weighted_exponentials = staticmethod(cross_entropy.weighted_exponentials)
    score_exponentials = staticmethod(scores.score_exponentials)
    soft_cap_slope = staticmethod(scores.soft_cap_slope)
    score_gradient = staticmethod(scores.score_gradient)
    adamw = staticmethod(optimizer.adamw)

    @staticmethod
    def product_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32)
