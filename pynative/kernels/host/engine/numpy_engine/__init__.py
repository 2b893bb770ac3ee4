"""The engine that is always there: numpy and its BLAS, in place where it can be, nothing kept."""

import numpy as np

from pynative.kernels.host.engine.numpy_engine import activations, norms, products, scores, softmax


class NumpyEngine:
    """See `interface.Engine`."""

    matmul = staticmethod(products.matmul)
    sum_rows = staticmethod(products.sum_rows)
    norm = staticmethod(norms.norm)
    norm_gradient = staticmethod(norms.norm_gradient)
    activation = staticmethod(activations.activation)
    activation_gradient = staticmethod(activations.activation_gradient)
    softmax_exponentials = staticmethod(softmax.softmax_exponentials)
    score_exponentials = staticmethod(scores.score_exponentials)
    score_gradient = staticmethod(scores.score_gradient)

    @staticmethod
    def product_type(dtype: np.dtype) -> np.dtype:
        return np.dtype(np.float32)
