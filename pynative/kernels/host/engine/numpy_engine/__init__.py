"""The engine that is always there: numpy and its BLAS, in place where possible."""

from typing import Any

import numpy as np

from pynative.kernels.host.engine.numpy_engine import activations, norms, products, sweeps


class NumpyEngine:
    """An engine, as the protocol `interface.Engine` describes it, that computes with numpy."""

    name = "numpy"

    matmul = staticmethod(products.matmul)
    prepared_matmul = staticmethod(products.prepared_matmul)
    add = staticmethod(sweeps.add)
    sum_rows = staticmethod(sweeps.sum_rows)
    norm = staticmethod(norms.norm)
    norm_gradient = staticmethod(norms.norm_gradient)
    activation = staticmethod(activations.activation)
    activation_gradient = staticmethod(activations.activation_gradient)
    logit_statistics = staticmethod(sweeps.logit_statistics)
    weighted_exponentials = staticmethod(sweeps.weighted_exponentials)
    score_exponentials = staticmethod(products.score_exponentials)
    soft_cap_slope = staticmethod(products.soft_cap_slope)
    score_gradient = staticmethod(products.score_gradient)
    adamw = staticmethod(sweeps.adamw)

    @staticmethod
    def product_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32)
