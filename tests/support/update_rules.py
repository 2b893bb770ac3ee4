"""Update rules of optimizers in plain float64 numpy, as their papers write them."""

import numpy as np


class Adam:
    """Adam, Kingma & Ba 2015, algorithm 1; with `decoupled` AdamW, Loshchilov & Hutter 2019, algorithm 2; without
    `corrected` MindSpore's AdamWeightDecay, whose epsilon is added to the root of the uncorrected average."""

    def __init__(self, beta1=0.9, beta2=0.95, epsilon=1e-3, decoupled=True, corrected=True):
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.decoupled, self.corrected = decoupled, corrected
        self.step, self.m, self.v = 0, 0.0, 0.0

    def __call__(self, p: np.ndarray, g: np.ndarray, learning_rate: float, weight_decay: float) -> np.ndarray:
        """The parameter after a step on gradient g."""
        self.step += 1
        if not self.decoupled:
            g = g + weight_decay * p
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m_hat, v_hat = self.m, self.v
        if self.corrected:
            m_hat, v_hat = self.m / (1 - self.beta1**self.step), self.v / (1 - self.beta2**self.step)
        update = m_hat / (np.sqrt(v_hat) + self.epsilon)
        if self.decoupled:
            update = update + weight_decay * p
        return p - learning_rate * update


class Lion:
    """Lion, Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    def __init__(self, beta1=0.95, beta2=0.98):
        self.beta1, self.beta2, self.m = beta1, beta2, 0.0

    def __call__(self, p: np.ndarray, g: np.ndarray, learning_rate: float, weight_decay: float) -> np.ndarray:
        """The parameter after a step on gradient g."""
        direction = np.sign(self.beta1 * self.m + (1 - self.beta1) * g)
        self.m = self.beta2 * self.m + (1 - self.beta2) * g
        return p - learning_rate * (direction + weight_decay * p)


class Sgd:
    """Gradient descent with momentum, and weight decay added to the gradient."""

    def __init__(self, momentum=0.9):
        self.momentum, self.buffer = momentum, 0.0

    def __call__(self, p: np.ndarray, g: np.ndarray, learning_rate: float, weight_decay: float) -> np.ndarray:
        """The parameter after a step on gradient g."""
        self.buffer = self.momentum * self.buffer + g + weight_decay * p
        return p - learning_rate * self.buffer
